/* SPDX-License-Identifier: Apache-2.0
 *
 * The fold of this rank's slots, and the collectives that the owner waits for.
 */

#include <inttypes.h>
#include <string.h>

#include "client.h"

float *buffer(const phx_client *c, int64_t i) { return (float *)(c->segment.at + i * c->plan.stride); }

int phx_fold(phx_client *c) {
	int r = must_have_begun(c, "fold");
	if (r != 0)
		return r;
	if (c->gradient.step != 0)
		return fail(c, PHX_E_ILLEGAL, "fold of step %" PRIu64 ": its gradient was voted for and must stay", c->begun.step);
	c->fold_begun = c->begun;
	c->next_slot = c->begun.slot_first;
	c->stack_length = 0;
	c->leaf = false;
	return 0;
}

float *phx_slot_buffer(phx_client *c, int64_t slot) {
	if (c->fold_begun.step == 0 || c->leaf || slot != c->next_slot || slot >= c->fold_begun.slot_end) {
		fail(c, PHX_E_ILLEGAL, "buffer of slot %" PRId64 ": the next one is %" PRId64 " of %" PRId64 " to %" PRId64, slot, c->next_slot,
			c->fold_begun.slot_first, c->fold_begun.slot_end);
		return NULL;
	}
	c->leaf = true;
	float *b = buffer(c, c->stack_length);
	memset(b, 0, (size_t)(4 * c->config.gradient_elements));
	return b;
}

/* phx_slot_done merges a finished pair of siblings at once. What is left at the end are the sums of the cover of the rank's
 * range, in slot order, at the start of the segment. */
int phx_slot_done(phx_client *c, int64_t slot) {
	if (!c->leaf || slot != c->next_slot)
		return fail(c, PHX_E_ILLEGAL, "slot %" PRId64 " is done, the one in work is %" PRId64, slot, c->next_slot);
	c->leaf = false;
	c->next_slot++;
	c->stack[c->stack_length++] = (slot_node){slot, slot + 1};
	for (int top = c->stack_length - 1; top > 0; top--) {
		slot_node sum;
		if (!tree_merge(c->fold_begun.slot_count, c->stack[top - 1], c->stack[top], &sum))
			break;
		phx_add_f32(buffer(c, top - 1), buffer(c, top), c->config.gradient_elements);
		c->stack[top - 1] = sum;
		c->stack_length = top;
	}
	return 0;
}

static bool fold_complete(const phx_client *c) {
	return c->begun.step != 0 && c->fold_begun.step == c->begun.step && c->fold_begun.epoch == c->begun.epoch &&
		c->fold_begun.number == c->begun.number && !c->leaf && c->next_slot == c->begun.slot_end;
}

/* post posts a descriptor of the begun step, of which only the words that are not zero are given. */
static int post(phx_client *c, uint64_t *d) {
	enter(c, PHALANX_PHASE_REDUCE, c->begun.step);
	d[F(T_RING, GENERATION_EPOCH)] = c->begun.epoch;
	d[F(T_RING, GENERATION_NUMBER)] = c->begun.number;
	int64_t sequence = ring_post(c, d);
	if (sequence < 0)
		return (int)sequence;
	c->sequence = (uint64_t)sequence;
	c->newer_since = 0;
	c->look = LOOK_COLLECTIVE;
	return PHX_PENDING;
}

int phx_reduce(phx_client *c, int mean) {
	int r = must_have_begun(c, "reduce");
	if (r != 0)
		return r;
	if (c->gradient.step != 0)
		return fail(c, PHX_E_ILLEGAL, "reduce of step %" PRIu64 ": its gradient was voted for and must stay", c->begun.step);
	if (!fold_complete(c))
		return fail(c, PHX_E_ILLEGAL, "reduce of step %" PRIu64 ": slots %" PRId64 " to %" PRId64 " are folded up to %" PRId64 "; fold all of them",
			c->begun.step, c->begun.slot_first, c->begun.slot_end, c->next_slot);
	c->counts = -1;
	c->t_reduce = monotonic_ns();
	uint64_t d[W(T_RING)] = {0};
	d[F(T_RING, OP)] = PHALANX_OP_ALL_REDUCE;
	d[F(T_RING, DTYPE)] = PHALANX_DTYPE_F32;
	d[F(T_RING, GROUP)] = (uint64_t)c->begun.coordinate;
	d[F(T_RING, ROOT)] = (uint64_t)-1;
	d[F(T_RING, COUNT)] = (uint64_t)c->config.gradient_elements;
	d[F(T_RING, IN_STRIDE)] = (uint64_t)c->plan.stride;
	d[F(T_RING, IN_NODES)] = (uint64_t)c->stack_length;
	d[F(T_RING, OUT_OFFSET)] = (uint64_t)c->plan.out;
	d[F(T_RING, SCALE)] = mean ? PHALANX_SCALE_MEAN : PHALANX_SCALE_SUM;
	return post(c, d);
}

float *phx_reduced(phx_client *c) { return (float *)(c->segment.at + c->plan.out); }

int phx_reduce_counts(phx_client *c, const int64_t *counts, int64_t n) {
	int r = must_have_begun(c, "reduce_counts");
	if (r != 0)
		return r;
	int nodes = tree_cover(c->begun.slot_count, (slot_node){c->begun.slot_first, c->begun.slot_end});
	if (n < 0 || n > c->config.count_elements || nodes > c->plan.count_buffers)
		return fail(c, PHX_E_ILLEGAL, "reduce_counts of %" PRId64 " counts, %" PRId64 " were registered", n, c->config.count_elements);
	/* Integer sums do not depend on their order, so the first node takes everything and the others are zero. */
	for (int i = 0; i < nodes; i++)
		memset(c->segment.at + c->plan.counts + i * c->plan.count_stride, 0, (size_t)(8 * n));
	memcpy(c->segment.at + c->plan.counts, counts, (size_t)(8 * n));
	c->counts = n;
	uint64_t d[W(T_RING)] = {0};
	d[F(T_RING, OP)] = PHALANX_OP_ALL_REDUCE;
	d[F(T_RING, DTYPE)] = PHALANX_DTYPE_I64;
	d[F(T_RING, GROUP)] = (uint64_t)c->begun.coordinate;
	d[F(T_RING, ROOT)] = (uint64_t)-1;
	d[F(T_RING, COUNT)] = (uint64_t)n;
	d[F(T_RING, IN_OFFSET)] = (uint64_t)c->plan.counts;
	d[F(T_RING, IN_STRIDE)] = (uint64_t)c->plan.count_stride;
	d[F(T_RING, IN_NODES)] = (uint64_t)nodes;
	d[F(T_RING, OUT_OFFSET)] = (uint64_t)c->plan.count_out;
	return post(c, d);
}

const int64_t *phx_reduced_counts(phx_client *c) { return (const int64_t *)(c->segment.at + c->plan.count_out); }

int look_collective(phx_client *c) {
	switch (ring_done(c, c->sequence)) {
	case PHX_PENDING: break;
	case PHX_REDUCED:
		if (c->counts < 0)
			c->t_reduced = monotonic_ns();
		return PHX_REDUCED;
	case PHX_REVOKED: return fail(c, PHX_REVOKED, "reduction of step %" PRIu64 ": its generation has ended", c->begun.step);
	default: return fail(c, PHX_FAILED, "reduction of step %" PRIu64 " failed; see the daemon's log", c->begun.step);
	}
	seat s = read_seat(c);
	if (!superseded(c, &s))
		return PHX_PENDING;
	/* The daemon may still write to the segment: wait for its word, for a while. */
	int64_t now = monotonic_ns();
	if (c->newer_since == 0)
		c->newer_since = now;
	if (now - c->newer_since >= REVOKE_GRACE_NS)
		return fail(c, PHX_REVOKED, "reduction of step %" PRIu64 ": its generation has ended", c->begun.step);
	return PHX_PENDING;
}

int phx_digest(phx_client *c, phx_digest_t *out) {
	int r = must_have_begun(c, "digest");
	if (r != 0)
		return r;
	int64_t shape[1] = {c->config.gradient_elements};
	phx_tensor t = {.name = "gradient", .dtype = "f32", .shape = shape, .dims = 1, .address = phx_reduced(c), .bytes = 4 * shape[0]};
	r = phx_digest_tensors(phx_vote_seed(c->config.seed, c->begun.step), &t, 1, out);
	c->t_digested = monotonic_ns();
	return r;
}
