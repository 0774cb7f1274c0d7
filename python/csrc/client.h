/* SPDX-License-Identifier: Apache-2.0
 *
 * The insides of phx_client. The Go package client has the same parts under the same names, and its comments say why.
 */
#ifndef PHALANX_CSRC_CLIENT_H
#define PHALANX_CSRC_CLIENT_H

#include <pthread.h>
#include <stdbool.h>

#include "digest.h"
#include "page.h"
#include "phalanx.h"
#include "tree.h"
#include "workers.h"

typedef struct {
	uint64_t epoch, number;
} generation;

static inline bool generation_equal(generation a, generation b) { return a.epoch == b.epoch && a.number == b.number; }
static inline bool generation_less(generation a, generation b) {
	return a.epoch < b.epoch || (a.epoch == b.epoch && a.number < b.number);
}

typedef struct {
	uint64_t step;
	generation made; /* made_in of the gradient */
	uint64_t digest[2];
	int64_t coordinate;
	bool valid;
} label;

/* A seat as read; sequence 0: none was written yet. */
typedef struct {
	uint64_t w[PHALANX_D_SEAT_WORDS];
	uint64_t sequence;
} seat;

static inline generation seat_generation(const seat *s) {
	return (generation){s->w[F(D_SEAT, GENERATION_EPOCH)], s->w[F(D_SEAT, GENERATION_NUMBER)]};
}

/* Where the trainer's buffers lie in its segment, each at a 64-byte boundary. */
typedef struct {
	int64_t buffers, stride, out, counts, count_stride, count_buffers, count_out, extra, bytes;
} segment_plan;

typedef enum { LOOK_NONE, LOOK_BEGIN, LOOK_VOTE, LOOK_COLLECTIVE, LOOK_FINISH } look_kind;

enum { AGAIN = 100 }; /* of a look: something was done that may allow more */
enum { max_stack = 64, notes_bytes = 4096, any_coordinate = -1, ended_places = 4096 };

#define ORPHAN_AFTER_NS (60ll * 1000000000)
#define CLOSE_GRACE_NS (5ll * 1000000000)
#define FINISH_GRACE_NS (10ll * 1000000000)
#define REVOKE_GRACE_NS (5ll * 1000000000)
#define GROUP_WORLD (~(uint64_t)0)

/* One copy of the state into a slab. Its threads are the only writers of the slab until done; the owner starts and joins it. */
typedef struct {
	bool running; /* the owner's: started and not joined */
	pthread_t thread;
	uint64_t sequence;
	uint8_t *slab;
	label from;
	int abort, done;   /* atomic */
	int64_t next;      /* atomic: the piece that is copied next */
} staging;

struct phx_client {
	phx_config config;
	phx_tensor *tensors;
	int64_t tensor_count;
	int64_t *slab_offsets, slab_bytes;
	uint64_t layout_hash;
	segment_plan plan;
	char error[512];

	region page, bells, segment, slabs[PHX_MAX_SLABS];
	int slab_count;
	uint64_t *words; /* of the page */
	bell own, daemon;
	uint64_t start;  /* of this process */
	bool plain;      /* of a job without steps: the ring and nothing else */
	bool alone;      /* a world of one without a daemon */

	/* Held by who changes or gives away the state: in waits between two sleeps, and not while the caller's optimizer runs. */
	pthread_mutex_t state_lock;
	look_kind look;
	label applied;
	label gradient;  /* step 0: none */
	uint64_t branch; /* of the generation that made the gradient */
	uint64_t voted_step;
	generation voted_in;
	phx_begun_t begun; /* step 0: none was begun */
	seat begun_seat;
	bool torn;
	uint64_t applying; /* of PHX_APPLY: the step the caller's optimizer runs for */
	int64_t coordinate, wanted_coordinate;
	uint64_t obeyed, complained;

	bool heal_on, heal_news;
	generation heal_in;
	uint64_t heal_seat; /* count of the seat that was healed: that seat heals once */

	staging stage;
	uint64_t answer; /* sequence of the last D_SAVE that was answered */
	uint64_t *digests; /* of the state with the label digests_of; NULL: none */
	label digests_of;

	/* The fold of the begun step. */
	phx_begun_t fold_begun;
	slot_node stack[max_stack];
	int stack_length;
	int64_t next_slot;
	bool leaf;

	/* The collective that is waited for. */
	uint64_t sequence;
	int64_t newer_since; /* when its generation was seen to be over, 0: not yet */
	int64_t counts;      /* of phx_reduce_counts; -1: the gradient */

	int waiters, closing; /* atomic: threads in phx_wait and phx_wait_any, which phx_close sees out */

	int64_t staged_since; /* of phx_finish */
	int64_t t_begun, t_reduce, t_reduced, t_digested;
	int64_t daemon_seen, daemon_checked, orphan_after;

	pthread_mutex_t progress_lock; /* guards T_PROGRESS and T_WORK */
	uint64_t counter;
	bool working;

	pthread_mutex_t ring_lock; /* guards T_RING, T_RING_HEAD, T_ABORT and what follows */
	uint64_t first_sequence;   /* of this process: the page outlives it */
	uint8_t ended[ended_places]; /* how descriptors ended whose place of the ring is used again */

	pthread_mutex_t notes_lock;
	char notes[notes_bytes];
	int notes_length;

	bool pulse;
	pthread_t pulse_thread, populate_thread;
	uint32_t pulse_over;
	int populating, populate_over;
};

static inline uint64_t *cell_at(const phx_client *c, int at) { return c->words + at / 8; }
#define READ(c, cell, payload) cell_read(cell_at(c, PHALANX_##cell##_AT), payload, W(cell))
#define WRITE(c, cell, payload) cell_write(cell_at(c, PHALANX_##cell##_AT), payload, W(cell))
#define READ_PLACE(c, cell, i, payload) cell_read(cell_at(c, PHALANX_##cell##_AT + (i) * PHALANX_##cell##_STRIDE), payload, W(cell))
#define WORD(c, name) cell_at(c, PHALANX_##name##_AT)
#define WORD_PLACE(c, name, i) cell_at(c, PHALANX_##name##_AT + (i) * PHALANX_##name##_STRIDE)

/* client.c */
int fail(phx_client *c, int code, const char *format, ...) __attribute__((format(printf, 3, 4)));
void note(phx_client *c, const char *format, ...) __attribute__((format(printf, 2, 3)));
void enter(phx_client *c, int phase, uint64_t step);
void set_applied(phx_client *c, label l);
void write_gradient(phx_client *c, label g);
seat read_seat(const phx_client *c);
int check_daemon(phx_client *c);
int must_have_begun(phx_client *c, const char *call);
bool wait_enter(phx_client *c);
void wait_leave(phx_client *c);
static inline bool within(int64_t offset, int64_t length, int64_t size) {
	return offset >= 0 && length >= 0 && offset <= size && length <= size - offset;
}
bool in_tensor(const phx_client *c, int64_t tensor, int64_t offset, int64_t length);
bool label_equal(const label *a, const label *b);

void release(phx_client *c); /* create.c */

/* pulse.c */
void end_pulse(phx_client *c);

/* begin.c */
void announce(phx_client *c);
int obey(phx_client *c);
bool committed(const phx_client *c, const seat *s);
phx_begun_t begun_of(const seat *s);
bool finished(const phx_client *c, const seat *s);

/* step.c */
int begin_apply(phx_client *c);
int look_vote(phx_client *c);
int look_finish(phx_client *c);
bool superseded(const phx_client *c, const seat *s);

/* collective.c */
int look_collective(phx_client *c);
float *buffer(const phx_client *c, int64_t i);

/* ring.c */
int64_t ring_post(phx_client *c, const uint64_t *descriptor);
int ring_done(phx_client *c, uint64_t sequence);

/* serve.c, stage.c, heal.c */
void serve(phx_client *c);
bool serve_wanted(const phx_client *c);
void serve_save(phx_client *c);
void join_staging(phx_client *c);
void abort_staging(phx_client *c);
int heal_step(phx_client *c, const seat *s);
void tensor_digest(const phx_client *c, int64_t i, uint64_t out[2]);

/* alone.c */
void alone_seat(phx_client *c);
void alone_commit(phx_client *c);
void alone_collective(phx_client *c, const uint64_t *descriptor);

#endif
