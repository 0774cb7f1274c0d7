/* SPDX-License-Identifier: Apache-2.0 */

#include "client.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

int phx_abi(void) { return PHX_ABI; }

int fail(phx_client *c, int code, const char *format, ...) {
	va_list args;
	va_start(args, format);
	vsnprintf(c->error, sizeof c->error, format, args);
	va_end(args);
	return code;
}

/* note keeps a line for phx_notes. What does not fit is lost: the lines are about changes, and somebody reads them. */
void note(phx_client *c, const char *format, ...) {
	char line[512];
	va_list args;
	va_start(args, format);
	int n = vsnprintf(line, sizeof line - 1, format, args);
	va_end(args);
	if (n < 0)
		return;
	if (n > (int)sizeof line - 2)
		n = (int)sizeof line - 2;
	line[n++] = '\n';
	pthread_mutex_lock(&c->notes_lock);
	if (c->notes_length + n < notes_bytes) {
		memcpy(c->notes + c->notes_length, line, (size_t)n);
		c->notes_length += n;
	}
	pthread_mutex_unlock(&c->notes_lock);
}

int phx_notes(phx_client *c, char *out, int size) {
	if (__atomic_load_n(&c->notes_length, __ATOMIC_RELAXED) == 0)
		return 0;
	pthread_mutex_lock(&c->notes_lock);
	int n = c->notes_length < size ? c->notes_length : size;
	memcpy(out, c->notes, (size_t)n);
	c->notes_length = 0;
	pthread_mutex_unlock(&c->notes_lock);
	return n;
}

const char *phx_error(const phx_client *c) { return c->error; }
int64_t phx_segment_bytes(const phx_client *c) { return c->plan.bytes; }
uint64_t phx_layout_hash(const phx_client *c) { return c->layout_hash; }
int64_t phx_slab_offset(const phx_client *c, int64_t tensor) { return c->slab_offsets[tensor]; }
int64_t phx_slab_bytes(const phx_client *c) { return c->slab_bytes; }

/* map_memory maps the daemon's files. */
static int map_memory(phx_client *c, const char *page, const char *bells, const char *segment, const char *const *slabs, int slab_count) {
	char why[400] = "";
	if (region_open(page, &c->page, why, sizeof why) != 0 || page_check(&c->page, page, why, sizeof why) != 0 ||
		region_open(bells, &c->bells, why, sizeof why) != 0 || region_open(segment, &c->segment, why, sizeof why) != 0)
		return fail(c, PHX_E_MEMORY, "%s", why);
	if (c->bells.bytes < PHALANX_BELL_LINES * PHALANX_BELL_BYTES)
		return fail(c, PHX_E_MEMORY, "%s: %zu bytes, want %d: of another release", bells, c->bells.bytes, PHALANX_BELL_LINES * PHALANX_BELL_BYTES);
	if ((int64_t)c->segment.bytes < c->plan.bytes)
		return fail(c, PHX_E_MEMORY, "segment of %zu bytes, the trainer asked for %" PRId64, c->segment.bytes, c->plan.bytes);
	if (slab_count < 0 || slab_count > PHX_MAX_SLABS)
		return fail(c, PHX_E_ARGUMENT, "%d slabs, at most %d can be used", slab_count, PHX_MAX_SLABS);
	for (int i = 0; i < slab_count; i++) {
		if (region_open(slabs[i], &c->slabs[i], why, sizeof why) != 0)
			return fail(c, PHX_E_MEMORY, "%s", why);
		if ((int64_t)c->slabs[i].bytes < c->slab_bytes)
			return fail(c, PHX_E_MEMORY, "slab of %zu bytes, the state needs %" PRId64, c->slabs[i].bytes, c->slab_bytes);
	}
	c->slab_count = slab_count;
	return 0;
}

static bell bell_at(const phx_client *c, uint64_t line) {
	uint32_t *at = (uint32_t *)(c->bells.at + line * PHALANX_BELL_BYTES);
	return (bell){at, at + 1, at + 2};
}

/* take_over takes mapped memory over. */
static void take_over(phx_client *c) {
	c->words = (uint64_t *)c->page.at;
	c->own = bell_at(c, word_load(c->words + PHALANX_HEADER_TRAINER_BELL));
	c->daemon = bell_at(c, word_load(c->words + PHALANX_HEADER_DAEMON_BELL));
	c->coordinate = any_coordinate;
	c->daemon_seen = monotonic_ns();
	c->first_sequence = word_load(WORD(c, T_RING_HEAD)) + 1;
}

/* announce_fresh announces a fresh state, that of step 0. */
static void announce_fresh(phx_client *c) {
	take_over(c);
	uint64_t staged[W(T_STAGED)];
	if (READ(c, T_STAGED, staged) > 0)
		c->answer = staged[F(T_STAGED, SEQUENCE)];

	write_gradient(c, (label){0});
	uint64_t healing[W(T_HEALING)] = {0}, applying[W(T_APPLYING)] = {0};
	healing[F(T_HEALING, TRAINER_START)] = c->start;
	WRITE(c, T_HEALING, healing);
	applying[F(T_APPLYING, TRAINER_START)] = c->start;
	WRITE(c, T_APPLYING, applying);
	set_applied(c, (label){.coordinate = any_coordinate, .valid = true});
	bell_ring(c->daemon);
}

static void unmap(phx_client *c) {
	for (int i = 0; i < PHX_MAX_SLABS; i++)
		region_unmap(&c->slabs[i]);
	c->slab_count = 0;
	region_unmap(&c->segment);
	region_unmap(&c->bells);
	region_unmap(&c->page);
	c->words = NULL;
}

/* populate maps the pages of the slabs beside the first steps, so that the first save copies as fast as later ones. */
static void *populate(void *arg) {
	phx_client *c = arg;
	enum { step = 4 << 20 }; /* about 1 ms: meanwhile nobody in the process maps or unmaps anything */
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif
	for (int i = 0; i < c->slab_count; i++)
		for (size_t at = 0; at < c->slabs[i].bytes && !__atomic_load_n(&c->populate_over, __ATOMIC_RELAXED); at += step) {
			size_t n = c->slabs[i].bytes - at < step ? c->slabs[i].bytes - at : step;
			if (madvise(c->slabs[i].at + at, n, MADV_POPULATE_WRITE) != 0)
				return NULL; /* a kernel before 5.14: the first save copies slowly */
		}
	return NULL;
}

int phx_attach(phx_client *c, const char *page, const char *bells, const char *segment, const char *const *slabs, int slab_count, uint64_t start) {
	if (c->words != NULL)
		return fail(c, PHX_E_ILLEGAL, "attached already");
	int r = map_memory(c, page, bells, segment, slabs, slab_count);
	if (r != 0) {
		unmap(c);
		return r;
	}
	c->start = start;
	announce_fresh(c);
	if (slab_count > 0 && thread_start(&c->populate_thread, populate, c) == 0)
		c->populating = 1;
	return 0;
}

int phx_attach_plain(phx_client *c, const char *page, const char *bells, const char *segment, uint64_t start) {
	if (c->words != NULL)
		return fail(c, PHX_E_ILLEGAL, "attached already");
	int r = map_memory(c, page, bells, segment, NULL, 0);
	if (r != 0) {
		unmap(c);
		return r;
	}
	c->plain = true;
	c->start = start;
	take_over(c);
	return 0;
}

int phx_attach_alone(phx_client *c) {
	if (c->words != NULL)
		return fail(c, PHX_E_ILLEGAL, "attached already");
	char why[400];
	if (region_anonymous(PHALANX_PAGE_BYTES, &c->page, why, sizeof why) != 0 ||
		region_anonymous(PHALANX_BELL_LINES * PHALANX_BELL_BYTES, &c->bells, why, sizeof why) != 0 ||
		region_anonymous((size_t)(c->plan.bytes > 0 ? c->plan.bytes : 64), &c->segment, why, sizeof why) != 0) {
		unmap(c);
		return fail(c, PHX_E_MEMORY, "%s", why);
	}
	c->alone = true;
	c->start = process_start((int64_t)getpid());
	page_write_header((uint64_t *)c->page.at, 0, 1);
	announce_fresh(c);
	alone_seat(c);
	return 0;
}

/* wait_enter says that a thread is about to use what phx_close unmaps. false: it is closed. */
bool wait_enter(phx_client *c) {
	__atomic_add_fetch(&c->waiters, 1, __ATOMIC_SEQ_CST);
	if (__atomic_load_n(&c->closing, __ATOMIC_SEQ_CST) == 0)
		return true;
	wait_leave(c);
	return false;
}

void wait_leave(phx_client *c) { __atomic_sub_fetch(&c->waiters, 1, __ATOMIC_SEQ_CST); }

/* see_out ends the waits of other threads. false: one is still there after CLOSE_GRACE_NS. */
static bool see_out(phx_client *c) {
	const struct timespec pause = {0, 200000};
	int64_t deadline = monotonic_ns() + CLOSE_GRACE_NS;
	__atomic_store_n(&c->closing, 1, __ATOMIC_SEQ_CST);
	while (__atomic_load_n(&c->waiters, __ATOMIC_SEQ_CST) != 0) {
		if (monotonic_ns() >= deadline)
			return false;
		bell_ring(c->own);
		nanosleep(&pause, NULL);
	}
	return true;
}

void phx_close(phx_client *c) {
	if (c->words != NULL && !see_out(c))
		return; /* its memory stays: better than to take it from under a thread */
	if (c->words != NULL) {
		abort_staging(c);
		if (c->populating) {
			__atomic_store_n(&c->populate_over, 1, __ATOMIC_RELAXED);
			pthread_join(c->populate_thread, NULL);
		}
		end_pulse(c);
		unmap(c);
	}
	release(c);
}

void phx_set_orphan_after(phx_client *c, int64_t ns) { c->orphan_after = ns; }

void phx_preempt(phx_client *c) {
	word_store(WORD(c, T_PREEMPT), 1);
	bell_ring(c->daemon);
}

static void progress(phx_client *c, int phase, uint64_t step) {
	uint64_t p[W(T_PROGRESS)] = {0};
	p[F(T_PROGRESS, PHASE)] = (uint64_t)phase;
	p[F(T_PROGRESS, STEP)] = step;
	p[F(T_PROGRESS, COUNTER)] = ++c->counter;
	p[F(T_PROGRESS, BOOTTIME_NS)] = (uint64_t)boottime_ns();
	WRITE(c, T_PROGRESS, p);
}

void phx_working(phx_client *c, uint64_t step, int64_t slot) {
	pthread_mutex_lock(&c->progress_lock);
	c->working = true;
	uint64_t w[W(T_WORK)] = {0};
	w[F(T_WORK, STEP)] = step;
	w[F(T_WORK, SLOT)] = (uint64_t)slot;
	w[F(T_WORK, TRAINER_START)] = c->start;
	w[F(T_WORK, ON)] = 1;
	WRITE(c, T_WORK, w);
	progress(c, PHALANX_PHASE_COMPUTE, step);
	pthread_mutex_unlock(&c->progress_lock);
}

void phx_progress(phx_client *c, int phase) {
	pthread_mutex_lock(&c->progress_lock);
	uint64_t p[W(T_PROGRESS)] = {0};
	READ(c, T_PROGRESS, p);
	progress(c, phase, p[F(T_PROGRESS, STEP)]);
	pthread_mutex_unlock(&c->progress_lock);
}

void phx_at(phx_client *c, int phase, uint64_t step) {
	pthread_mutex_lock(&c->progress_lock);
	progress(c, phase, step);
	pthread_mutex_unlock(&c->progress_lock);
}

/* enter says that the owner is in a phase of the library's own, in which no slot is in work. */
void enter(phx_client *c, int phase, uint64_t step) {
	pthread_mutex_lock(&c->progress_lock);
	if (c->working) {
		c->working = false;
		uint64_t w[W(T_WORK)] = {0};
		READ(c, T_WORK, w);
		w[F(T_WORK, ON)] = 0;
		WRITE(c, T_WORK, w);
	}
	progress(c, phase, step);
	pthread_mutex_unlock(&c->progress_lock);
}

void set_applied(phx_client *c, label l) {
	c->applied = l;
	uint64_t a[W(T_APPLIED)] = {0};
	a[F(T_APPLIED, STEP)] = l.step;
	a[F(T_APPLIED, GENERATION_EPOCH)] = l.made.epoch;
	a[F(T_APPLIED, GENERATION_NUMBER)] = l.made.number;
	a[F(T_APPLIED, DIGEST0)] = l.digest[0];
	a[F(T_APPLIED, DIGEST1)] = l.digest[1];
	a[F(T_APPLIED, COORDINATE)] = (uint64_t)l.coordinate;
	a[F(T_APPLIED, TRAINER_START)] = c->start;
	a[F(T_APPLIED, VALID)] = l.valid;
	WRITE(c, T_APPLIED, a);
}

void write_gradient(phx_client *c, label g) {
	c->gradient = g;
	uint64_t w[W(T_GRADIENT)] = {0};
	w[F(T_GRADIENT, GENERATION_EPOCH)] = g.made.epoch;
	w[F(T_GRADIENT, GENERATION_NUMBER)] = g.made.number;
	w[F(T_GRADIENT, STEP)] = g.step;
	w[F(T_GRADIENT, DIGEST0)] = g.digest[0];
	w[F(T_GRADIENT, DIGEST1)] = g.digest[1];
	w[F(T_GRADIENT, COORDINATE)] = (uint64_t)g.coordinate;
	w[F(T_GRADIENT, TRAINER_START)] = c->start;
	WRITE(c, T_GRADIENT, w);
}

seat read_seat(const phx_client *c) {
	seat s;
	memset(&s, 0, sizeof s);
	s.sequence = READ(c, D_SEAT, s.w);
	return s;
}

bool in_tensor(const phx_client *c, int64_t tensor, int64_t offset, int64_t length) {
	return tensor >= 0 && tensor < c->tensor_count && within(offset, length, c->tensors[tensor].bytes);
}

bool label_equal(const label *a, const label *b) {
	return a->step == b->step && generation_equal(a->made, b->made) && a->digest[0] == b->digest[0] && a->digest[1] == b->digest[1] &&
		a->coordinate == b->coordinate;
}

void phx_label_of(const phx_client *c, phx_label *out) {
	const label *l = &c->applied;
	*out = (phx_label){l->step, l->made.epoch, l->made.number, {l->digest[0], l->digest[1]}, l->coordinate, l->valid && !c->torn};
}

uint8_t *phx_extra(phx_client *c, int64_t *offset) {
	*offset = c->plan.extra;
	return c->segment.at + c->plan.extra;
}

int phx_set_address(phx_client *c, int64_t tensor, void *address) {
	if (tensor < 0 || tensor >= c->tensor_count)
		return fail(c, PHX_E_ARGUMENT, "tensor %" PRId64 " of %" PRId64, tensor, c->tensor_count);
	pthread_mutex_lock(&c->state_lock);
	join_staging(c);
	c->tensors[tensor].address = address;
	pthread_mutex_unlock(&c->state_lock);
	return 0;
}

int phx_state_digest(phx_client *c, phx_digest_t *out) { return phx_digest_tensors(0, c->tensors, c->tensor_count, out); }

int must_have_begun(phx_client *c, const char *call) {
	if (c->torn)
		return fail(c, PHX_E_TORN, "%s: the state is torn: the optimizer did not finish; exit", call);
	if (c->begun.step == 0)
		return fail(c, PHX_E_ILLEGAL, "%s: no step was begun; call begin first", call);
	return 0;
}

/* check_daemon looks for a living daemon after a silent second; the page names the present one. */
int check_daemon(phx_client *c) {
	int64_t now = monotonic_ns();
	if (c->alone || now - c->daemon_checked < 900000000)
		return 0;
	c->daemon_checked = now;
	uint64_t id[W(D_IDENTITY)];
	if (READ(c, D_IDENTITY, id) > 0) {
		uint64_t start = process_start((int64_t)id[F(D_IDENTITY, DAEMON_PID)]);
		if (start != 0 && start == id[F(D_IDENTITY, DAEMON_START)]) {
			c->daemon_seen = now;
			return 0;
		}
	}
	if (now - c->daemon_seen >= c->orphan_after)
		return fail(c, PHX_ORPHANED, "no daemon has lived for %d s; start phalanx run again", (int)((now - c->daemon_seen) / 1000000000));
	return 0;
}

static int look(phx_client *c) {
	switch (c->look) {
	case LOOK_BEGIN: return obey(c);
	case LOOK_VOTE: return look_vote(c);
	case LOOK_COLLECTIVE: return look_collective(c);
	case LOOK_FINISH: return look_finish(c);
	default: return fail(c, PHX_E_ILLEGAL, "wait: nothing was begun that could be waited for");
	}
}

static int wait_for(phx_client *c, int64_t timeout_ns) {
	int64_t deadline = monotonic_ns() + timeout_ns;
	for (;;) {
		uint32_t seen = bell_count(c->own);
		if (__atomic_load_n(&c->closing, __ATOMIC_SEQ_CST))
			return PHX_E_ILLEGAL;
		pthread_mutex_lock(&c->state_lock);
		serve(c);
		int r = look(c);
		pthread_mutex_unlock(&c->state_lock);
		if (r == AGAIN)
			continue;
		if (r != PHX_PENDING) {
			if (r != PHX_APPLY && r != PHX_COORDINATE)
				c->look = LOOK_NONE;
			return r;
		}
		int64_t left = deadline - monotonic_ns();
		if (left <= 0)
			return PHX_TIMEOUT;
		switch (bell_wait(c->own, seen, left)) {
		case BELL_INTERRUPTED: return PHX_INTERRUPTED;
		case BELL_TIMEOUT:
			if ((r = check_daemon(c)) != 0)
				return r;
			break;
		case BELL_RUNG: break;
		}
	}
}

int phx_wait(phx_client *c, int64_t timeout_ns) {
	if (!wait_enter(c))
		return PHX_E_ILLEGAL;
	int r = wait_for(c, timeout_ns);
	wait_leave(c);
	return r;
}
