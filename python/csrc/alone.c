/* SPDX-License-Identifier: Apache-2.0
 *
 * A world of one without a daemon: what the daemon would write is written here, at once, on a page of this process alone.
 */

#include <string.h>

#include "client.h"

/* alone_seat gives all slots to the one rank, or says stop when training has ended. */
void alone_seat(phx_client *c) {
	uint64_t s[W(D_SEAT)] = {0};
	bool over = c->look == LOOK_FINISH;
	bool leaves = over || word_load(WORD(c, T_PREEMPT)) != 0;
	s[F(D_SEAT, GENERATION_NUMBER)] = 1;
	s[F(D_SEAT, ACTION)] = leaves ? PHALANX_ACTION_STOP : PHALANX_ACTION_RUN;
	s[F(D_SEAT, WORLD)] = s[F(D_SEAT, GROUP_SIZE)] = s[F(D_SEAT, LOCAL_WORLD)] = 1;
	s[F(D_SEAT, SLOT_END)] = s[F(D_SEAT, SLOT_COUNT)] = (uint64_t)c->config.slots;
	s[F(D_SEAT, LAST_STEP)] = c->config.last_step;
	seat now = read_seat(c);
	if (now.sequence == 0 || memcmp(now.w, s, sizeof s) != 0)
		WRITE(c, D_SEAT, s);
	bell_ring(c->own);
}

void alone_commit(phx_client *c) {
	uint64_t m[W(D_COMMIT)] = {0};
	m[F(D_COMMIT, GENERATION_NUMBER)] = c->begun.number;
	m[F(D_COMMIT, STEP)] = c->begun.step;
	WRITE(c, D_COMMIT, m);
	bell_ring(c->own);
}

/* dtype_size is the bytes of an element of a collective, 0 for none. */
static int64_t dtype_size(uint64_t dtype) {
	switch (dtype) {
	case PHALANX_DTYPE_F64: case PHALANX_DTYPE_I64: case PHALANX_DTYPE_U64: return 8;
	case PHALANX_DTYPE_F32: case PHALANX_DTYPE_I32: case PHALANX_DTYPE_U32: return 4;
	case PHALANX_DTYPE_F16: case PHALANX_DTYPE_BF16: case PHALANX_DTYPE_I16: case PHALANX_DTYPE_U16: return 2;
	case PHALANX_DTYPE_U8: case PHALANX_DTYPE_I8: case PHALANX_DTYPE_BOOL: return 1;
	default: return 0;
	}
}

/* carry_out copies the input to the result: what every operation of a group of one comes to, but for the mean over slots, which is
 * applied to the sum of all of them. */
static bool carry_out(phx_client *c, const uint64_t *d) {
	uint64_t op = d[F(T_RING, OP)];
	if (op == PHALANX_OP_BARRIER)
		return true;
	if (op == PHALANX_OP_NONE || op == PHALANX_OP_SEND || op == PHALANX_OP_RECV)
		return false; /* there is no other rank */
	int64_t size = dtype_size(d[F(T_RING, DTYPE)]), n = (int64_t)d[F(T_RING, COUNT)], room = (int64_t)c->segment.bytes;
	int64_t in = (int64_t)d[F(T_RING, IN_OFFSET)], out = (int64_t)d[F(T_RING, OUT_OFFSET)];
	if (d[F(T_RING, FLAGS)] & PHALANX_COLL_FLAG_COUNTS) {
		int64_t at = (int64_t)d[F(T_RING, COUNTS_OFFSET)];
		if (!within(at, 8, room))
			return false;
		memcpy(&n, c->segment.at + at, 8);
	}
	if (size == 0 || n < 0 || n > room / size || !within(in, n * size, room) || !within(out, n * size, room))
		return false;
	bool mean = d[F(T_RING, SCALE)] == PHALANX_SCALE_MEAN && d[F(T_RING, GROUP)] < (uint64_t)1 << 32;
	if (mean && d[F(T_RING, DTYPE)] == PHALANX_DTYPE_F32)
		phx_scale_f32((float *)(c->segment.at + out), (const float *)(c->segment.at + in), 1.0f / (float)c->config.slots, n);
	else
		memmove(c->segment.at + out, c->segment.at + in, (size_t)(n * size));
	return true;
}

void alone_collective(phx_client *c, const uint64_t *d) {
	uint64_t sequence = d[F(T_RING, SEQUENCE)], status = carry_out(c, d) ? PHALANX_STATUS_OK : PHALANX_STATUS_FAILED;
	word_store(WORD_PLACE(c, D_COMPLETE, (sequence - 1) % PHALANX_D_COMPLETE_PLACES), answer_make(sequence, status));
	bell_ring(c->own);
}
