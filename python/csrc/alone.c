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

/* alone_collective sums the cover of all slots, which is one node, and scales it once. */
void alone_collective(phx_client *c, const uint64_t *d) {
	uint8_t *in = c->segment.at + d[F(T_RING, IN_OFFSET)], *out = c->segment.at + d[F(T_RING, OUT_OFFSET)];
	int64_t n = (int64_t)d[F(T_RING, COUNT)];
	if (d[F(T_RING, DTYPE)] == PHALANX_DTYPE_I64)
		memcpy(out, in, (size_t)(8 * n));
	else if (d[F(T_RING, SCALE)] == PHALANX_SCALE_MEAN)
		scale_f32((float *)out, (const float *)in, 1.0f / (float)c->config.slots, n);
	else
		memcpy(out, in, (size_t)(4 * n));
	uint64_t sequence = d[F(T_RING, SEQUENCE)];
	word_store(WORD_PLACE(c, D_COMPLETE, (sequence - 1) % PHALANX_D_COMPLETE_PLACES), answer_make(sequence, PHALANX_STATUS_OK));
	bell_ring(c->own);
}
