/* SPDX-License-Identifier: Apache-2.0
 *
 * Begin: obeying seats until one says run.
 */

#include <inttypes.h>
#include <string.h>

#include "client.h"

/* announce says that the owner waits in begin, for which step, and which seat it has seen there. */
void announce(phx_client *c) {
	enter(c, PHALANX_PHASE_BEGIN, c->applied.step + 1);
	uint64_t b[W(T_BEGIN)] = {0};
	b[F(T_BEGIN, WAITING)] = 1;
	b[F(T_BEGIN, STEP)] = c->applied.step + 1;
	b[F(T_BEGIN, SEAT_SEQUENCE)] = c->obeyed;
	b[F(T_BEGIN, TRAINER_START)] = c->start;
	WRITE(c, T_BEGIN, b);
	bell_tell(c->daemon);
}

static bool resumes(const seat *s, const label *l) {
	return s->w[F(D_SEAT, RESUME_STEP)] == l->step && s->w[F(D_SEAT, RESUME_GENERATION_EPOCH)] == l->made.epoch &&
		s->w[F(D_SEAT, RESUME_GENERATION_NUMBER)] == l->made.number && s->w[F(D_SEAT, RESUME_DIGEST0)] == l->digest[0] &&
		s->w[F(D_SEAT, RESUME_DIGEST1)] == l->digest[1];
}

/* committed reports whether the step after the applied one is decided with the gradient that is held. A commit may be acted
 * on late, but never once a seat of another branch was read, unless that branch begins with this very step. The daemon
 * writes a commit before the seat that rests on it, so the seat was read first. */
bool committed(const phx_client *c, const seat *s) {
	const label *g = &c->gradient;
	uint64_t m[W(D_COMMIT)];
	if (g->step == 0 || READ(c, D_COMMIT, m) == 0)
		return false;
	bool floor = resumes(s, g) && (int64_t)s->w[F(D_SEAT, COORDINATE)] == g->coordinate;
	return m[F(D_COMMIT, STEP)] == g->step && m[F(D_COMMIT, GENERATION_EPOCH)] == g->made.epoch && m[F(D_COMMIT, GENERATION_NUMBER)] == g->made.number &&
		c->applied.valid && g->step == c->applied.step + 1 && (s->w[F(D_SEAT, BRANCH)] == c->branch || floor);
}

bool finished(const phx_client *c, const seat *s) {
	uint64_t last = s->w[F(D_SEAT, LAST_STEP)];
	return c->applied.valid && c->applied.step >= (last != 0 ? last : c->config.last_step);
}

/* leave ends the trainer's part: what the daemon asked to save is staged first. It may have asked after the last look. */
static int leave(phx_client *c, const seat *s) {
	serve(c);
	enter(c, PHALANX_PHASE_SAVE, c->applied.step);
	join_staging(c);
	return finished(c, s) ? PHX_DONE : fail(c, PHX_PREEMPTED, "the member leaves before the last step");
}

/* fits reports whether the state is the seat's floor, or was made in its generation, with its coordinate. */
static bool fits(const phx_client *c, const seat *s) {
	const label *a = &c->applied;
	if (!a->valid || c->heal_on || (a->coordinate != any_coordinate && a->coordinate != (int64_t)s->w[F(D_SEAT, COORDINATE)]))
		return false;
	return resumes(s, a) || (generation_equal(a->made, seat_generation(s)) && a->step > s->w[F(D_SEAT, RESUME_STEP)]);
}

/* check_seat refuses a place for which the segment was not planned. */
static int check_seat(phx_client *c, const seat *s) {
	int64_t first = (int64_t)s->w[F(D_SEAT, SLOT_FIRST)], end = (int64_t)s->w[F(D_SEAT, SLOT_END)], count = (int64_t)s->w[F(D_SEAT, SLOT_COUNT)];
	int64_t world = (int64_t)s->w[F(D_SEAT, WORLD)], group = (int64_t)s->w[F(D_SEAT, GROUP_SIZE)];
	if (count != c->config.slots || first < 0 || first >= end || end > count || world < 1 || group < 1)
		return fail(c, PHX_E_SEAT,
			"generation %" PRIu64 " gives slots %" PRId64 " to %" PRId64 " of %" PRId64 " in a world of %" PRId64 ", the job has %" PRId64 " slots",
			s->w[F(D_SEAT, GENERATION_NUMBER)], first, end, count, world, c->config.slots);
	return 0;
}

/* begun_of is the place that a seat gives. */
phx_begun_t begun_of(const seat *s) {
	return (phx_begun_t){
		.epoch = s->w[F(D_SEAT, GENERATION_EPOCH)], .number = s->w[F(D_SEAT, GENERATION_NUMBER)],
		.rank = (int64_t)s->w[F(D_SEAT, RANK)], .world = (int64_t)s->w[F(D_SEAT, WORLD)],
		.group_size = (int64_t)s->w[F(D_SEAT, GROUP_SIZE)], .coordinate = (int64_t)s->w[F(D_SEAT, COORDINATE)],
		.slot_first = (int64_t)s->w[F(D_SEAT, SLOT_FIRST)], .slot_end = (int64_t)s->w[F(D_SEAT, SLOT_END)],
		.slot_count = (int64_t)s->w[F(D_SEAT, SLOT_COUNT)],
		.local_rank = (int64_t)s->w[F(D_SEAT, LOCAL_RANK)], .local_world = (int64_t)s->w[F(D_SEAT, LOCAL_WORLD)],
	};
}

/* take begins the next step if the state is one that the seat builds on. */
static int take(phx_client *c, const seat *s) {
	if (!fits(c, s)) {
		if (c->complained != s->sequence) {
			c->complained = s->sequence;
			note(c, "WARNING state does not fit the seat, waiting for a heal: generation %" PRIu64 ", have step %" PRIu64 " (%s), want step %" PRIu64,
				s->w[F(D_SEAT, GENERATION_NUMBER)], c->applied.step, c->applied.valid ? "valid" : "void", s->w[F(D_SEAT, RESUME_STEP)]);
		}
		return PHX_PENDING;
	}
	if (finished(c, s))
		return PHX_DONE;
	int r = check_seat(c, s);
	if (r != 0)
		return r;
	uint64_t next = c->applied.step + 1;
	generation g = seat_generation(s);
	if (c->voted_step == next && generation_equal(c->voted_in, g))
		return PHX_PENDING; /* a vote is final: only its commit or another generation goes on from here */
	c->wanted_coordinate = (int64_t)s->w[F(D_SEAT, COORDINATE)];
	if (c->wanted_coordinate != c->coordinate)
		return PHX_COORDINATE;
	if (c->gradient.step != 0)
		write_gradient(c, (label){0}); /* applied, or its step was not decided: its memory is free */
	if (!generation_equal(g, seat_generation(&c->begun_seat)))
		note(c, "INFO seat taken: generation %" PRIu64 ", rank %" PRId64 " of %" PRId64 ", step %" PRIu64, g.number, (int64_t)s->w[F(D_SEAT, RANK)],
			(int64_t)s->w[F(D_SEAT, WORLD)], next);
	c->begun_seat = *s;
	c->begun = begun_of(s);
	c->begun.step = next;
	c->begun.healed = c->heal_news;
	c->heal_news = false;
	c->t_begun = monotonic_ns();
	c->t_reduce = c->t_reduced = c->t_digested = 0;
	uint64_t b[W(T_BEGIN)] = {0};
	b[F(T_BEGIN, STEP)] = next;
	b[F(T_BEGIN, SEAT_SEQUENCE)] = s->sequence;
	b[F(T_BEGIN, TRAINER_START)] = c->start;
	WRITE(c, T_BEGIN, b);
	return PHX_RUN;
}

/* obey does what the seat says. */
int obey(phx_client *c) {
	seat s = read_seat(c);
	if (s.sequence == 0)
		return PHX_PENDING;
	uint64_t action = s.w[F(D_SEAT, ACTION)];
	if (action == PHALANX_ACTION_FENCED)
		return fail(c, PHX_FENCED, "generation %" PRIu64 " goes on without this member", s.w[F(D_SEAT, GENERATION_NUMBER)]);
	if (committed(c, &s))
		return begin_apply(c); /* rolls forward; phx_applied announces again */
	if (c->obeyed != s.sequence) {
		c->obeyed = s.sequence;
		announce(c);
	}
	switch (action) {
	case PHALANX_ACTION_STOP: return leave(c, &s);
	case PHALANX_ACTION_HEAL: return heal_step(c, &s);
	case PHALANX_ACTION_PARK: return finished(c, &s) ? PHX_DONE : PHX_PENDING;
	case PHALANX_ACTION_RUN: return take(c, &s);
	default: return fail(c, PHX_E_SEAT, "seat with action %" PRIu64 "; run daemon and client of one release", action);
	}
}

/* phx_begin takes a seat that is there already without a wait, if nothing else is asked for: most steps begin so. */
int phx_begin(phx_client *c) {
	if (c->words == NULL || c->plain)
		return fail(c, PHX_E_ILLEGAL, "begin: say hello first");
	if (c->torn)
		return fail(c, PHX_E_TORN, "begin: the state is torn: the optimizer did not finish; exit");
	memset(&c->begun, 0, sizeof c->begun);
	announce(c);
	c->look = LOOK_BEGIN;
	if (c->alone)
		alone_seat(c);
	if (pthread_mutex_trylock(&c->state_lock) != 0)
		return PHX_PENDING; /* another thread serves a heal */
	if (!c->stage.running)
		serve_save(c); /* starts beside the next computation */
	seat s = read_seat(c);
	int r = PHX_PENDING;
	if (s.sequence > 0 && s.w[F(D_SEAT, ACTION)] == PHALANX_ACTION_RUN && !serve_wanted(c) && !committed(c, &s))
		r = obey(c);
	pthread_mutex_unlock(&c->state_lock);
	if (r == AGAIN)
		return PHX_PENDING;
	if (r != PHX_PENDING && r != PHX_COORDINATE && r != PHX_APPLY) /* a commit that came just now is applied inside of begin */
		c->look = LOOK_NONE;
	return r;
}

int phx_healed(phx_client *c) {
	bool news = c->heal_news;
	c->heal_news = false;
	return news;
}

const phx_begun_t *phx_begun(const phx_client *c) { return &c->begun; }
int64_t phx_coordinate(const phx_client *c) { return c->wanted_coordinate; }

int phx_coordinate_taken(phx_client *c) {
	c->coordinate = c->wanted_coordinate;
	return PHX_PENDING;
}
