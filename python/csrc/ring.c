/* SPDX-License-Identifier: Apache-2.0
 *
 * The ring of collectives. Threads share it: a descriptor is filled and counted under a lock, and completed by the daemon in any
 * order.
 */

#include <inttypes.h>
#include <string.h>

#include "client.h"

/* status_of is what the page says of a descriptor whose place was not used again. */
static uint64_t status_of(const phx_client *c, uint64_t sequence) {
	uint64_t word = word_load(WORD_PLACE(c, D_COMPLETE, (sequence - 1) % PHALANX_D_COMPLETE_PLACES));
	return answer_sequence(word) == sequence ? answer_status(word) : PHALANX_STATUS_NONE;
}

/* ring_post posts a descriptor; its sequence is filled in. The one that was in its place is complete, or of a process that has
 * ended. */
int64_t ring_post(phx_client *c, const uint64_t *descriptor) {
	uint64_t d[W(T_RING)];
	memcpy(d, descriptor, sizeof d);
	pthread_mutex_lock(&c->ring_lock);
	uint64_t sequence = word_load(WORD(c, T_RING_HEAD)) + 1;
	if (sequence >= c->first_sequence + PHALANX_T_RING_PLACES) {
		uint64_t before = sequence - PHALANX_T_RING_PLACES, status = status_of(c, before);
		if (status == PHALANX_STATUS_NONE) {
			pthread_mutex_unlock(&c->ring_lock);
			return PHX_E_RING;
		}
		__atomic_store_n(&c->ended[before % ended_places], (uint8_t)status, __ATOMIC_SEQ_CST);
	}
	d[F(T_RING, SEQUENCE)] = sequence;
	uint64_t *at = WORD_PLACE(c, T_RING, (sequence - 1) % PHALANX_T_RING_PLACES);
	for (int i = 0; i < W(T_RING); i++)
		word_store(at + i, d[i]);
	word_store(WORD(c, T_RING_HEAD), sequence);
	if (c->alone)
		alone_collective(c, d);
	pthread_mutex_unlock(&c->ring_lock);
	bell_ring(c->daemon);
	return (int64_t)sequence;
}

static int result_of(uint64_t status) {
	switch (status) {
	case PHALANX_STATUS_NONE: return PHX_PENDING;
	case PHALANX_STATUS_OK: return PHX_REDUCED;
	case PHALANX_STATUS_REVOKED: return PHX_REVOKED;
	default: return PHX_FAILED;
	}
}

int ring_done(phx_client *c, uint64_t sequence) {
	uint64_t status = status_of(c, sequence);
	if (status != PHALANX_STATUS_NONE)
		return result_of(status);
	/* Either it is under way, or its place was used again, which stores how it ended before the head moves on. */
	uint64_t head = word_load(WORD(c, T_RING_HEAD));
	if (sequence + PHALANX_T_RING_PLACES <= head)
		return result_of(__atomic_load_n(&c->ended[sequence % ended_places], __ATOMIC_SEQ_CST));
	return PHX_PENDING;
}

int64_t phx_post(phx_client *c, const phx_descriptor *p) {
	if (c->words == NULL)
		return PHX_E_ILLEGAL;
	uint64_t epoch = p->epoch, number = p->number;
	if (epoch == 0 && number == 0) {
		seat s = read_seat(c);
		epoch = s.w[F(D_SEAT, GENERATION_EPOCH)];
		number = s.w[F(D_SEAT, GENERATION_NUMBER)];
	}
	uint64_t d[W(T_RING)] = {0};
	d[F(T_RING, GENERATION_EPOCH)] = epoch;
	d[F(T_RING, GENERATION_NUMBER)] = number;
	d[F(T_RING, OP)] = p->op;
	d[F(T_RING, DTYPE)] = p->dtype;
	d[F(T_RING, GROUP)] = p->group;
	d[F(T_RING, ROOT)] = (uint64_t)p->root;
	d[F(T_RING, COUNT)] = (uint64_t)p->count;
	d[F(T_RING, IN_OFFSET)] = (uint64_t)p->in_offset;
	d[F(T_RING, IN_STRIDE)] = (uint64_t)p->in_stride;
	d[F(T_RING, IN_NODES)] = (uint64_t)p->in_nodes;
	d[F(T_RING, OUT_OFFSET)] = (uint64_t)p->out_offset;
	d[F(T_RING, SCALE)] = p->scale;
	d[F(T_RING, FLAGS)] = p->flags;
	d[F(T_RING, REDUCTION)] = p->reduction;
	d[F(T_RING, PEER)] = (uint64_t)p->peer;
	d[F(T_RING, TAG)] = p->tag;
	d[F(T_RING, COUNTS_OFFSET)] = (uint64_t)p->counts_offset;
	return ring_post(c, d);
}

int phx_done(phx_client *c, uint64_t sequence) {
	uint64_t head = word_load(WORD(c, T_RING_HEAD));
	if (sequence < c->first_sequence || sequence > head || sequence + ended_places <= head)
		return PHX_E_ARGUMENT;
	return ring_done(c, sequence);
}

static int wait_any(phx_client *c, const uint64_t *sequences, int n, int64_t timeout_ns, int *which) {
	int64_t deadline = monotonic_ns() + timeout_ns;
	for (;;) {
		uint32_t seen = bell_count(c->own);
		if (__atomic_load_n(&c->closing, __ATOMIC_SEQ_CST))
			return PHX_E_ILLEGAL;
		for (int i = 0; i < n; i++) {
			int r = phx_done(c, sequences[i]);
			if (r != PHX_PENDING) {
				*which = i;
				return r;
			}
		}
		/* The one who heals may be the one that this collective waits for. */
		if (!c->plain && pthread_mutex_trylock(&c->state_lock) == 0) {
			if (!c->torn)
				serve(c);
			pthread_mutex_unlock(&c->state_lock);
		}
		int64_t left = deadline - monotonic_ns();
		if (left <= 0)
			return PHX_TIMEOUT;
		switch (bell_wait(c->own, seen, left)) {
		case BELL_INTERRUPTED: return PHX_INTERRUPTED;
		case BELL_TIMEOUT:
			if (check_daemon(c) != 0)
				return PHX_ORPHANED;
			break;
		case BELL_RUNG: break;
		}
	}
}

int phx_wait_any(phx_client *c, const uint64_t *sequences, int n, int64_t timeout_ns, int *which) {
	if (!wait_enter(c))
		return PHX_E_ILLEGAL;
	int r = wait_any(c, sequences, n, timeout_ns, which);
	wait_leave(c);
	return r;
}

int phx_seat(const phx_client *c, phx_begun_t *out) {
	seat s = read_seat(c);
	if (s.sequence == 0)
		return -1;
	*out = begun_of(&s);
	return (int)s.w[F(D_SEAT, ACTION)];
}

/* A ticket is sequence << 8 | place. */
int64_t phx_abort(phx_client *c, uint64_t epoch, uint64_t number, uint64_t group) {
	int64_t ticket = PHX_E_RING;
	pthread_mutex_lock(&c->ring_lock);
	for (int i = 0; i < PHALANX_T_ABORT_PLACES && ticket < 0; i++) {
		uint64_t a[W(T_ABORT)] = {0};
		uint64_t *cell = cell_at(c, PHALANX_T_ABORT_AT + i * PHALANX_T_ABORT_STRIDE);
		uint64_t written = cell_read(cell, a, W(T_ABORT));
		if (written > 0 && answer_sequence(word_load(WORD_PLACE(c, D_ABORTED, i))) != a[F(T_ABORT, SEQUENCE)])
			continue; /* under way */
		a[F(T_ABORT, GENERATION_EPOCH)] = epoch;
		a[F(T_ABORT, GENERATION_NUMBER)] = number;
		a[F(T_ABORT, SEQUENCE)]++;
		a[F(T_ABORT, GROUP)] = group;
		cell_write(cell, a, W(T_ABORT));
		ticket = (int64_t)(a[F(T_ABORT, SEQUENCE)] << 8) | i;
	}
	pthread_mutex_unlock(&c->ring_lock);
	if (ticket >= 0)
		bell_ring(c->daemon);
	return ticket;
}

int phx_aborted(phx_client *c, int64_t ticket) {
	int place = (int)(ticket & 0xff);
	uint64_t sequence = (uint64_t)ticket >> 8;
	if (ticket < 0 || place >= PHALANX_D_ABORTED_PLACES)
		return PHX_E_ARGUMENT;
	uint64_t word = word_load(WORD_PLACE(c, D_ABORTED, place));
	if (answer_sequence(word) < sequence)
		return PHX_PENDING;
	return answer_sequence(word) == sequence ? result_of(answer_status(word)) : PHX_REDUCED;
}
