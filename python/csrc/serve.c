/* SPDX-License-Identifier: Apache-2.0
 *
 * What the daemon asks for while the owner waits: registered memory for members that heal, and staging.
 */

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "client.h"

/* tensor_digest is D1 of one registered tensor with seed 0. */
void tensor_digest(const phx_client *c, int64_t i, uint64_t out[2]) {
	lane_keys keys;
	lane_keys_init(&keys, 0);
	d1_pass p;
	d1_begin(&p, &keys);
	d1_tensor(&p, &c->tensors[i], false);
	out[0] = p.sum[0];
	out[1] = p.sum[1];
}

/* state_digests keeps the digests of the state of one label: several members may heal from it. NULL: no memory. */
static const uint64_t *state_digests(phx_client *c) {
	if (c->digests != NULL && label_equal(&c->digests_of, &c->applied))
		return c->digests;
	if (c->digests == NULL)
		c->digests = malloc(16 * (size_t)(c->tensor_count + 1));
	if (c->digests == NULL)
		return NULL;
	for (int64_t i = 0; i < c->tensor_count; i++)
		tensor_digest(c, i, c->digests + 2 * i);
	c->digests_of = c->applied;
	return c->digests;
}

/* give answers one request of a donor's; the state is whole. */
static uint64_t give(phx_client *c, const uint64_t *r) {
	int64_t tensor = (int64_t)r[F(D_SERVE, TENSOR)], offset = (int64_t)r[F(D_SERVE, OFFSET)], length = (int64_t)r[F(D_SERVE, LENGTH)];
	int64_t at = (int64_t)r[F(D_SERVE, SEGMENT_OFFSET)];
	if (!within(at, length, (int64_t)c->segment.bytes))
		return PHALANX_STATUS_FAILED;
	if (r[F(D_SERVE, KIND)] == PHALANX_SERVE_KIND_DIGESTS && length >= 16 * c->tensor_count) {
		const uint64_t *digests = state_digests(c);
		if (digests == NULL)
			return PHALANX_STATUS_FAILED;
		memcpy(c->segment.at + at, digests, 16 * (size_t)c->tensor_count);
		return PHALANX_STATUS_OK;
	}
	if (r[F(D_SERVE, KIND)] == PHALANX_SERVE_KIND_READ && in_tensor(c, tensor, offset, length)) {
		memcpy(c->segment.at + at, (const uint8_t *)c->tensors[tensor].address + offset, (size_t)length);
		return PHALANX_STATUS_OK;
	}
	return PHALANX_STATUS_FAILED;
}

static bool serve_pending(const phx_client *c, int i, uint64_t *request) {
	return READ_PLACE(c, D_SERVE, i, request) > 0 && request[F(D_SERVE, SEQUENCE)] > answer_sequence(word_load(WORD_PLACE(c, T_SERVED, i)));
}

/* serve_heal answers one place of D_SERVE. A request of another generation than the seat's is void: the donor has ended all
 * serving for it. */
static void serve_heal(phx_client *c, int i, const seat *s) {
	uint64_t r[W(D_SERVE)];
	if (!serve_pending(c, i, r))
		return;
	generation g = {r[F(D_SERVE, GENERATION_EPOCH)], r[F(D_SERVE, GENERATION_NUMBER)]};
	uint64_t status = PHALANX_STATUS_FAILED;
	if (!generation_equal(g, seat_generation(s)))
		status = PHALANX_STATUS_REVOKED;
	else if (c->applied.valid && !c->torn && !c->heal_on)
		status = give(c, r);
	if (status == PHALANX_STATUS_FAILED)
		note(c, "WARNING heal request refused: kind %" PRIu64 ", tensor %" PRId64 ", offset %" PRId64 ", length %" PRId64 ", state %s",
			r[F(D_SERVE, KIND)], (int64_t)r[F(D_SERVE, TENSOR)], (int64_t)r[F(D_SERVE, OFFSET)], (int64_t)r[F(D_SERVE, LENGTH)],
			c->applied.valid ? "valid" : "void");
	word_store(WORD_PLACE(c, T_SERVED, i), answer_make(r[F(D_SERVE, SEQUENCE)], status));
	bell_ring(c->daemon);
}

void serve(phx_client *c) {
	seat s = read_seat(c);
	if (s.sequence > 0)
		for (int i = 0; i < PHALANX_D_SERVE_PLACES; i++)
			serve_heal(c, i, &s);
	serve_save(c);
}

/* serve_wanted reports whether a donor's request is open, without answering it. */
bool serve_wanted(const phx_client *c) {
	uint64_t r[W(D_SERVE)];
	for (int i = 0; i < PHALANX_D_SERVE_PLACES; i++)
		if (serve_pending(c, i, r))
			return true;
	return false;
}
