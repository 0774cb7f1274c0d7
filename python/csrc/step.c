/* SPDX-License-Identifier: Apache-2.0
 *
 * Vote, apply, finish.
 */

#include <inttypes.h>
#include <string.h>

#include "client.h"

/* superseded reports whether the begun step is over because the seat says something else by now. */
bool superseded(const phx_client *c, const seat *s) {
	generation begun = {c->begun.epoch, c->begun.number};
	return generation_less(begun, seat_generation(s)) || s->w[F(D_SEAT, ACTION)] != PHALANX_ACTION_RUN;
}

int phx_superseded(const phx_client *c) {
	seat s = read_seat(c);
	return superseded(c, &s);
}

int phx_vote(phx_client *c, int ok, const uint64_t digest[2], const int64_t *times) {
	int r = must_have_begun(c, "vote");
	if (r != 0)
		return r;
	generation g = {c->begun.epoch, c->begun.number};
	if (c->voted_step == c->begun.step && generation_equal(c->voted_in, g))
		return fail(c, PHX_E_ILLEGAL, "vote: step %" PRIu64 " was voted for in generation %" PRIu64, c->begun.step, g.number);
	enter(c, PHALANX_PHASE_VOTE, c->begun.step);
	if (ok) {
		c->branch = c->begun_seat.w[F(D_SEAT, BRANCH)];
		write_gradient(c, (label){.step = c->begun.step, .made = g, .digest = {digest[0], digest[1]}, .coordinate = c->begun.coordinate});
	}
	int64_t measured[3] = {0, 0, 0};
	if (c->t_reduce != 0 && c->t_reduced != 0) {
		measured[0] = c->t_reduce - c->t_begun;
		measured[1] = c->t_reduced - c->t_reduce;
		measured[2] = c->t_digested != 0 ? c->t_digested - c->t_reduced : 0;
	}
	if (times == NULL)
		times = measured;
	c->voted_step = c->begun.step;
	c->voted_in = g;
	uint64_t v[W(T_VOTE)] = {0};
	v[F(T_VOTE, GENERATION_EPOCH)] = g.epoch;
	v[F(T_VOTE, GENERATION_NUMBER)] = g.number;
	v[F(T_VOTE, STEP)] = c->begun.step;
	v[F(T_VOTE, OK)] = ok != 0;
	v[F(T_VOTE, DIGEST0)] = ok ? digest[0] : 0;
	v[F(T_VOTE, DIGEST1)] = ok ? digest[1] : 0;
	v[F(T_VOTE, TRAINER_START)] = c->start;
	v[F(T_VOTE, COMPUTE_NS)] = (uint64_t)times[0];
	v[F(T_VOTE, REDUCE_NS)] = (uint64_t)times[1];
	v[F(T_VOTE, DIGEST_NS)] = (uint64_t)times[2];
	WRITE(c, T_VOTE, v);
	c->look = LOOK_VOTE;
	if (c->alone && ok)
		alone_commit(c);
	bell_ring(c->daemon);
	return PHX_PENDING;
}

int look_vote(phx_client *c) {
	seat s = read_seat(c); /* before the commit: the daemon writes them the other way round */
	if (committed(c, &s))
		return begin_apply(c);
	if (superseded(c, &s) || (c->alone && c->gradient.step != c->begun.step)) {
		if (c->alone)
			c->voted_step = 0; /* nobody else has heard of the vote: the step is computed again */
		memset(&c->begun, 0, sizeof c->begun); /* only begin knows how it goes on */
		return PHX_REPEAT;
	}
	return PHX_PENDING;
}

/* begin_apply is the one operation behind commit and roll forward, up to where the caller's optimizer runs. The caller has
 * checked committed, which refuses everything but the step after a whole state. */
int begin_apply(phx_client *c) {
	const label *g = &c->gradient;
	join_staging(c);
	enter(c, PHALANX_PHASE_APPLY, g->step);
	uint64_t a[W(T_APPLYING)] = {0};
	a[F(T_APPLYING, STEP)] = g->step;
	a[F(T_APPLYING, GENERATION_EPOCH)] = g->made.epoch;
	a[F(T_APPLYING, GENERATION_NUMBER)] = g->made.number;
	a[F(T_APPLYING, TRAINER_START)] = c->start;
	WRITE(c, T_APPLYING, a);
	c->torn = true; /* until the optimizer has returned */
	c->applying = g->step;
	memset(&c->begun, 0, sizeof c->begun);
	return PHX_APPLY;
}

uint64_t phx_step(const phx_client *c) { return c->applying; }

int phx_applied(phx_client *c) {
	if (!c->torn || c->applying == 0)
		return fail(c, PHX_E_ILLEGAL, "applied: nothing was to be applied");
	label l = c->gradient;
	l.valid = true;
	pthread_mutex_lock(&c->state_lock);
	c->torn = false;
	c->applying = 0;
	set_applied(c, l);
	pthread_mutex_unlock(&c->state_lock);
	bell_tell(c->daemon);
	if (c->look == LOOK_BEGIN)
		announce(c);
	else
		c->look = LOOK_NONE;
	return PHX_PENDING;
}

int phx_apply_failed(phx_client *c) {
	c->applying = 0;
	c->look = LOOK_NONE;
	bell_ring(c->daemon);
	return fail(c, PHX_E_TORN, "apply of step %" PRIu64 ": the state is torn: the optimizer did not finish; exit", c->gradient.step);
}

static void write_done(phx_client *c, uint64_t step, const uint64_t digest[2]) {
	uint64_t d[W(T_DONE)] = {0};
	d[F(T_DONE, STEP)] = step;
	d[F(T_DONE, DIGEST0)] = digest[0];
	d[F(T_DONE, DIGEST1)] = digest[1];
	d[F(T_DONE, TRAINER_START)] = c->start;
	WRITE(c, T_DONE, d);
}

int phx_finish(phx_client *c, const uint64_t digest[2]) {
	if (c->words == NULL || c->plain)
		return fail(c, PHX_E_ILLEGAL, "finish: say hello first");
	if (c->torn)
		return fail(c, PHX_E_TORN, "finish: the state is torn: the optimizer did not finish; exit");
	memset(&c->begun, 0, sizeof c->begun);
	enter(c, PHALANX_PHASE_SAVE, c->applied.step);
	write_done(c, c->applied.step, digest);
	c->staged_since = 0;
	c->look = LOOK_FINISH;
	if (c->alone)
		alone_seat(c);
	bell_ring(c->daemon);
	return PHX_PENDING;
}

/* look_finish serves until the seat says stop, or for a while after the last state was staged. */
int look_finish(phx_client *c) {
	static const uint64_t none[2] = {0, 0};
	seat s = read_seat(c);
	switch (s.w[F(D_SEAT, ACTION)]) {
	case PHALANX_ACTION_FENCED: return fail(c, PHX_FENCED, "the world has ended this member's life before it was told to stop");
	case PHALANX_ACTION_HEAL:
		write_done(c, 0, none);
		return PHX_REPEAT;
	case PHALANX_ACTION_STOP:
		serve(c); /* a save that was asked for just before */
		join_staging(c);
		return PHX_STOPPED;
	default: break;
	}
	uint64_t t[W(T_STAGED)];
	if (c->staged_since == 0 && READ(c, T_STAGED, t) > 0 && t[F(T_STAGED, OK)] != 0 && t[F(T_STAGED, STEP)] == c->applied.step)
		c->staged_since = monotonic_ns();
	return c->staged_since != 0 && monotonic_ns() - c->staged_since >= FINISH_GRACE_NS ? PHX_STOPPED : PHX_PENDING;
}
