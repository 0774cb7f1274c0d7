/* SPDX-License-Identifier: Apache-2.0
 *
 * Healing: the registered state is replaced by that of a donor, and verified.
 */

#include <inttypes.h>
#include <string.h>

#include "client.h"

/* start_heal voids what the trainer possesses before the first byte is written. */
static void start_heal(phx_client *c, const seat *s) {
	abort_staging(c);
	c->heal_in = seat_generation(s);
	note(c, "INFO healing: generation %" PRIu64 ", from step %" PRIu64 " to step %" PRIu64, c->heal_in.number, c->applied.step,
		s->w[F(D_SEAT, RESUME_STEP)]);
	uint64_t h[W(T_HEALING)] = {0};
	h[F(T_HEALING, ON)] = 1;
	h[F(T_HEALING, GENERATION_EPOCH)] = c->heal_in.epoch;
	h[F(T_HEALING, GENERATION_NUMBER)] = c->heal_in.number;
	h[F(T_HEALING, TRAINER_START)] = c->start;
	WRITE(c, T_HEALING, h);
	label none = c->applied;
	none.valid = false;
	set_applied(c, none);
	write_gradient(c, (label){0});
	c->heal_on = c->heal_news = true;
	c->heal_seat = 0;
	memset(&c->digests_of, 0xff, sizeof c->digests_of); /* no label */
	bell_ring(c->daemon);
}

/* fill copies the bytes of one place of D_FILL into a registered tensor. */
static void fill(phx_client *c, int i) {
	uint64_t f[W(D_FILL)];
	if (READ_PLACE(c, D_FILL, i, f) == 0 || f[F(D_FILL, SEQUENCE)] <= answer_sequence(word_load(WORD_PLACE(c, T_FILLED, i))))
		return;
	generation g = {f[F(D_FILL, GENERATION_EPOCH)], f[F(D_FILL, GENERATION_NUMBER)]};
	int64_t tensor = (int64_t)f[F(D_FILL, TENSOR)], offset = (int64_t)f[F(D_FILL, OFFSET)], length = (int64_t)f[F(D_FILL, LENGTH)];
	int64_t at = (int64_t)f[F(D_FILL, SEGMENT_OFFSET)];
	uint64_t status = PHALANX_STATUS_FAILED;
	if (!generation_equal(g, c->heal_in))
		status = PHALANX_STATUS_REVOKED;
	else if (in_tensor(c, tensor, offset, length) && within(at, length, (int64_t)c->segment.bytes)) {
		memcpy((uint8_t *)c->tensors[tensor].address + offset, c->segment.at + at, (size_t)length);
		status = PHALANX_STATUS_OK;
	} else
		note(c, "ERROR heal bytes refused: tensor %" PRId64 ", offset %" PRId64 ", length %" PRId64 ", segment offset %" PRId64, tensor, offset, length, at);
	word_store(WORD_PLACE(c, T_FILLED, i), answer_make(f[F(D_FILL, SEQUENCE)], status));
	bell_ring(c->daemon);
}

/* verify compares every tensor with its expected digest and names the first that differs. */
static uint64_t verify(phx_client *c, const uint64_t *end, int64_t *tensor) {
	int64_t at = (int64_t)end[F(D_HEALEND, DIGESTS_OFFSET)];
	*tensor = -1;
	if ((int64_t)end[F(D_HEALEND, DIGESTS_COUNT)] != c->tensor_count)
		return PHALANX_WHY_COUNT_WRONG;
	if (!within(at, 16 * c->tensor_count, (int64_t)c->segment.bytes))
		return PHALANX_WHY_RANGE_WRONG;
	for (int64_t i = 0; i < c->tensor_count; i++) {
		uint64_t want[2], have[2];
		memcpy(want, c->segment.at + at + 16 * i, sizeof want);
		if (want[0] == 0 && want[1] == 0)
			continue; /* nothing was written: it stays as it was made */
		tensor_digest(c, i, have);
		if (want[0] != have[0] || want[1] != have[1]) {
			*tensor = i;
			return PHALANX_WHY_STATE_UNEQUAL;
		}
	}
	return PHALANX_WHY_NONE;
}

/* end_heal takes the label of the source. A kill before the last store leaves healing on: the trainer possesses nothing. */
static void end_heal(phx_client *c, const uint64_t *end, uint64_t sequence) {
	label l = {
		.step = end[F(D_HEALEND, LABEL_STEP)],
		.made = {end[F(D_HEALEND, LABEL_GENERATION_EPOCH)], end[F(D_HEALEND, LABEL_GENERATION_NUMBER)]},
		.digest = {end[F(D_HEALEND, LABEL_DIGEST0)], end[F(D_HEALEND, LABEL_DIGEST1)]},
		.coordinate = (int64_t)end[F(D_HEALEND, COORDINATE)],
		.valid = true,
	};
	uint64_t a[W(T_APPLYING)] = {0}, h[W(T_HEALING)] = {0};
	a[F(T_APPLYING, STEP)] = l.step;
	a[F(T_APPLYING, GENERATION_EPOCH)] = l.made.epoch;
	a[F(T_APPLYING, GENERATION_NUMBER)] = l.made.number;
	a[F(T_APPLYING, TRAINER_START)] = c->start;
	WRITE(c, T_APPLYING, a);
	set_applied(c, l);
	h[F(T_HEALING, GENERATION_EPOCH)] = c->heal_in.epoch;
	h[F(T_HEALING, GENERATION_NUMBER)] = c->heal_in.number;
	h[F(T_HEALING, TRAINER_START)] = c->start;
	WRITE(c, T_HEALING, h);
	c->heal_on = false;
	c->heal_seat = sequence;
	note(c, "INFO healed: generation %" PRIu64 ", step %" PRIu64, c->heal_in.number, l.step);
}

/* heal_step carries a heal on as far as the page allows. AGAIN: the label changed. */
int heal_step(phx_client *c, const seat *s) {
	if (c->heal_seat == s->sequence)
		return PHX_PENDING; /* done; the next seat says what follows */
	if (!c->heal_on || !generation_equal(c->heal_in, seat_generation(s))) {
		c->wanted_coordinate = (int64_t)s->w[F(D_SEAT, COORDINATE)];
		if (c->wanted_coordinate != c->coordinate)
			return PHX_COORDINATE;
		start_heal(c, s);
	}
	for (int i = 0; i < PHALANX_D_FILL_PLACES; i++)
		fill(c, i);
	uint64_t end[W(D_HEALEND)], result[W(T_HEALRESULT)] = {0};
	uint64_t written = READ(c, D_HEALEND, end);
	READ(c, T_HEALRESULT, result);
	generation g = {end[F(D_HEALEND, GENERATION_EPOCH)], end[F(D_HEALEND, GENERATION_NUMBER)]};
	if (written == 0 || end[F(D_HEALEND, SEQUENCE)] <= result[F(T_HEALRESULT, SEQUENCE)] || !generation_equal(g, c->heal_in))
		return PHX_PENDING;
	int64_t tensor;
	uint64_t why = verify(c, end, &tensor);
	if (why == PHALANX_WHY_NONE)
		end_heal(c, end, s->sequence);
	else
		note(c, "ERROR healed state does not verify: generation %" PRIu64 ", why %" PRIu64 ", tensor %" PRId64, g.number, why, tensor);
	memset(result, 0, sizeof result);
	result[F(T_HEALRESULT, GENERATION_EPOCH)] = g.epoch;
	result[F(T_HEALRESULT, GENERATION_NUMBER)] = g.number;
	result[F(T_HEALRESULT, SEQUENCE)] = end[F(D_HEALEND, SEQUENCE)];
	result[F(T_HEALRESULT, OK)] = why == PHALANX_WHY_NONE;
	result[F(T_HEALRESULT, WHY)] = why;
	result[F(T_HEALRESULT, TENSOR)] = (uint64_t)tensor;
	WRITE(c, T_HEALRESULT, result);
	bell_ring(c->daemon);
	if (why != PHALANX_WHY_NONE)
		return PHX_PENDING;
	announce(c);
	return AGAIN;
}
