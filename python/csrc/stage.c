/* SPDX-License-Identifier: Apache-2.0
 *
 * Staging: the state is copied into a slab by threads of the library, beside the owner's computation.
 */

#include <string.h>

#include "client.h"

enum { stage_chunk = 4 << 20, max_copiers = 4 };

/* copiers is how many threads copy: one core reaches a fraction of what memory gives, and the trainer is left the half of its
 * processors. Beyond four it gives little. */
static int copiers(void) {
	int n = processors() / 2;
	return n < 1 ? 1 : n > max_copiers ? max_copiers : n;
}

/* copy_pieces takes pieces, numbered through all tensors, until none is left. */
static void *copy_pieces(void *arg) {
	phx_client *c = arg;
	staging *s = &c->stage;
	int64_t tensor = 0, before = 0; /* pieces of the tensors before this one */
	for (;;) {
		int64_t piece = __atomic_fetch_add(&s->next, 1, __ATOMIC_RELAXED);
		while (tensor < c->tensor_count && piece - before >= (c->tensors[tensor].bytes + stage_chunk - 1) / stage_chunk) {
			before += (c->tensors[tensor].bytes + stage_chunk - 1) / stage_chunk;
			tensor++;
		}
		if (tensor == c->tensor_count || __atomic_load_n(&s->abort, __ATOMIC_RELAXED))
			return NULL;
		int64_t from = (piece - before) * stage_chunk, left = c->tensors[tensor].bytes - from;
		memcpy(s->slab + c->slab_offsets[tensor] + from, (const uint8_t *)c->tensors[tensor].address + from,
			(size_t)(left < stage_chunk ? left : stage_chunk));
	}
}

static void write_header(phx_client *c, uint64_t state) {
	const label *l = &c->stage.from;
	uint64_t h[W(S_HEADER)] = {0};
	h[F(S_HEADER, LABEL_GENERATION_EPOCH)] = l->made.epoch;
	h[F(S_HEADER, LABEL_GENERATION_NUMBER)] = l->made.number;
	h[F(S_HEADER, LABEL_STEP)] = l->step;
	h[F(S_HEADER, LABEL_DIGEST0)] = l->digest[0];
	h[F(S_HEADER, LABEL_DIGEST1)] = l->digest[1];
	h[F(S_HEADER, COORDINATE)] = (uint64_t)l->coordinate;
	h[F(S_HEADER, SEQUENCE)] = c->stage.sequence;
	h[F(S_HEADER, STATE)] = state;
	h[F(S_HEADER, LAYOUT_HASH)] = c->layout_hash;
	cell_write((uint64_t *)(c->stage.slab + PHALANX_S_HEADER_AT), h, W(S_HEADER));
}

static void write_staged(phx_client *c, uint64_t sequence, uint64_t step, bool ok, const label *l) {
	uint64_t t[W(T_STAGED)] = {0};
	t[F(T_STAGED, SEQUENCE)] = sequence;
	t[F(T_STAGED, STEP)] = step;
	t[F(T_STAGED, OK)] = ok;
	if (l != NULL) {
		t[F(T_STAGED, GENERATION_EPOCH)] = l->made.epoch;
		t[F(T_STAGED, GENERATION_NUMBER)] = l->made.number;
		t[F(T_STAGED, DIGEST0)] = l->digest[0];
		t[F(T_STAGED, DIGEST1)] = l->digest[1];
		t[F(T_STAGED, COORDINATE)] = (uint64_t)l->coordinate;
	}
	WRITE(c, T_STAGED, t);
}

/* stage copies every tensor and answers the save. It reads the state only. */
static void *stage(void *arg) {
	phx_client *c = arg;
	staging *s = &c->stage;
	write_header(c, PHALANX_SLAB_STATE_FILLING);
	pthread_t others[max_copiers];
	int n = 0;
	while (n < copiers() - 1 && thread_start(&others[n], copy_pieces, c) == 0)
		n++;
	copy_pieces(c);
	while (n > 0)
		pthread_join(others[--n], NULL);
	bool ok = !__atomic_load_n(&s->abort, __ATOMIC_RELAXED);
	write_header(c, ok ? PHALANX_SLAB_STATE_FULL : PHALANX_SLAB_STATE_FREE);
	write_staged(c, s->sequence, s->from.step, ok, &s->from);
	bell_ring(c->daemon);
	bell_ring(c->own); /* the wait for the end waits for it */
	__atomic_store_n(&s->done, 1, __ATOMIC_SEQ_CST);
	return NULL;
}

static void join(phx_client *c) {
	pthread_join(c->stage.thread, NULL);
	c->stage.running = false;
}

/* join_staging returns when no staging runs. It ends after at most one copy of the state, sooner when the daemon aborts. */
void join_staging(phx_client *c) {
	while (c->stage.running) {
		if (__atomic_load_n(&c->stage.done, __ATOMIC_SEQ_CST)) {
			join(c);
			return;
		}
		uint64_t save[W(D_SAVE)];
		if (READ(c, D_SAVE, save) > 0 && save[F(D_SAVE, SEQUENCE)] == c->stage.sequence && save[F(D_SAVE, ABORT)] != 0)
			__atomic_store_n(&c->stage.abort, 1, __ATOMIC_RELAXED);
		/* The thread rings this bell at its end; in between, look for an abort. */
		uint32_t seen = bell_count(c->own);
		if (!__atomic_load_n(&c->stage.done, __ATOMIC_SEQ_CST))
			bell_wait(c->own, seen, 5000000);
	}
}

/* abort_staging ends staging without its result. */
void abort_staging(phx_client *c) {
	if (c->stage.running) {
		__atomic_store_n(&c->stage.abort, 1, __ATOMIC_RELAXED);
		join(c);
	}
}

/* serve_save looks at D_SAVE. A save of a later step waits until that step is applied, one of an earlier step was missed. */
void serve_save(phx_client *c) {
	staging *s = &c->stage;
	if (s->running && __atomic_load_n(&s->done, __ATOMIC_SEQ_CST))
		join(c);
	uint64_t save[W(D_SAVE)];
	if (READ(c, D_SAVE, save) == 0 || save[F(D_SAVE, SEQUENCE)] < c->answer)
		return;
	uint64_t sequence = save[F(D_SAVE, SEQUENCE)], step = save[F(D_SAVE, STEP)];
	bool aborted = save[F(D_SAVE, ABORT)] != 0;
	if (s->running) {
		/* An abort, or another save, for which the daemon gave this one up. */
		if (aborted || sequence != s->sequence)
			__atomic_store_n(&s->abort, 1, __ATOMIC_RELAXED);
		if (sequence != s->sequence)
			join(c);
	}
	if (sequence <= c->answer)
		return;
	if (aborted || c->slab_count == 0 || c->torn || !c->applied.valid || c->applied.step > step) {
		c->answer = sequence;
		write_staged(c, sequence, step, false, NULL);
		bell_ring(c->daemon);
	} else if (c->applied.step == step) {
		c->answer = sequence;
		memset(s, 0, sizeof *s);
		s->sequence = sequence;
		s->slab = c->slabs[sequence % (uint64_t)c->slab_count].at;
		s->from = c->applied;
		if (thread_start(&s->thread, stage, c) == 0)
			s->running = true;
		else {
			note(c, "ERROR the state of step %llu is not staged: no thread can be started", (unsigned long long)step);
			write_staged(c, sequence, step, false, NULL);
			bell_ring(c->daemon);
		}
	}
}
