/* SPDX-License-Identifier: Apache-2.0
 *
 * libphalanx: the client library inside a training process, for C and for whatever calls C. It speaks the page, the bells,
 * the segment and the slab of docs/protocol.md; the one socket call at the start, POST /v1/hello, is the caller's.
 *
 *     phx_create(&config, tensors, n, &c);          registered memory is live: it is read for heals and saves
 *     … POST /v1/hello with phx_segment_bytes(c) …
 *     phx_attach(c, page, bells, segment, slab);
 *     for (;;) {
 *         r = phx_begin(c);    then phx_wait until it is PHX_RUN; see phx_begun
 *         phx_fold(c); for each slot: phx_slot_buffer, add into it, phx_slot_done
 *         phx_reduce(c, 1);    then phx_wait until it is PHX_REDUCED; the gradient is at phx_reduced(c)
 *         phx_digest(c, &d);
 *         phx_vote(c, 1, d.digest, NULL);  then phx_wait until it is PHX_APPLY (run the optimizer, say phx_applied) or PHX_REPEAT
 *     }
 *     phx_finish(c, digest);   then phx_wait until it is PHX_STOPPED
 *
 * Waits. A call that starts something returns PHX_PENDING, or already what a wait would return. phx_wait then returns
 * PHX_TIMEOUT after its time and PHX_INTERRUPTED after a signal of its thread: call it again. PHX_APPLY and PHX_COORDINATE
 * ask the caller to do something and go on: the optimizer is the caller's. A negative result is an error; phx_error(c) is
 * a sentence about it.
 *
 * Threads. All calls are for one thread at a time, the owner's, except phx_working, phx_progress, phx_preempt, and the ring
 * calls, which may come from any. Nothing here needs a lock of Python: only phx_wait, phx_digest, phx_state_digest, phx_slot_done,
 * phx_set_address, phx_wait_any and phx_close block or take long; all others return at once.
 *
 * While a thread is in phx_wait or phx_wait_any the library gives registered memory to members that heal and starts staging, so
 * that memory changes between PHX_APPLY and phx_applied only. Staging is done by threads of the library, which have ended before
 * PHX_APPLY is returned and before a heal writes.
 */
#ifndef PHALANX_H
#define PHALANX_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define PHX_API __attribute__((visibility("default")))

/* PHX_ABI changes with every change of this header that an older caller would not survive. */
#define PHX_ABI 1

typedef struct phx_client phx_client;

/* What a wait ended with. */
enum {
	PHX_PENDING = 0,
	PHX_RUN = 1,         /* a step was begun: phx_begun */
	PHX_APPLY = 2,       /* committed: run the optimizer for phx_step(c), then phx_applied, or phx_apply_failed and exit */
	PHX_COORDINATE = 3,  /* take shard coordinate phx_coordinate(c), then phx_coordinate_taken */
	PHX_REDUCED = 4,     /* the collective has ended well */
	PHX_REVOKED = 5,     /* its generation has ended: begin again */
	PHX_FAILED = 6,      /* the collective failed although its generation lives: vote not ok */
	PHX_REPEAT = 7,      /* the step is not decided here, or training goes on after its end: begin again */
	PHX_STOPPED = 8,     /* the end */
	PHX_TIMEOUT = 9,
	PHX_INTERRUPTED = 10,
	PHX_DONE = 11,       /* the last step is applied: phx_finish */
	PHX_PREEMPTED = 12,  /* the member leaves before the last step: exit 75 */
	PHX_FENCED = 13,     /* not in the world any more: exit */
	PHX_ORPHANED = 14,   /* no daemon has lived for a minute: exit 75 */
	PHX_E_ILLEGAL = -1,  /* a call out of its order */
	PHX_E_TORN = -2,     /* the optimizer did not finish: exit */
	PHX_E_ARGUMENT = -3, /* a mistake in what is registered or asked */
	PHX_E_MEMORY = -4,   /* no memory, or a file that cannot be mapped */
	PHX_E_SEAT = -5,     /* a seat that contradicts the spec */
	PHX_E_RING = -6,     /* the ring is full */
};

/* A registered tensor: contiguous, little-endian. dtype is one of Phalanx's names (f32, bf16, i64, …). */
typedef struct {
	const char *name, *dtype;
	const int64_t *shape;
	int32_t dims;
	int32_t per_rank;             /* 1: every rank has content of its own */
	void *address;
	int64_t bytes;
	const int64_t *global_shape;  /* NULL, or dims numbers: it is a box of a larger tensor */
	const int64_t *global_offset;
} phx_tensor;

typedef struct {
	uint64_t last_step, seed;
	int64_t slots;             /* S */
	int64_t gradient_elements; /* float32 that a step reduces */
	int64_t count_elements;    /* int64 that phx_reduce_counts reduces at most */
	int64_t extra_bytes;       /* shared memory for the caller's own collectives */
} phx_config;

/* What phx_begun points to; it changes with PHX_RUN only. */
typedef struct {
	uint64_t step;
	uint64_t epoch, number; /* the generation */
	int64_t rank, world, group_size, coordinate;
	int64_t slot_first, slot_end, slot_count;
	int64_t local_rank, local_world;
	int64_t healed; /* 1: the registered state was replaced since the last PHX_RUN */
} phx_begun_t;

typedef struct {
	uint64_t step, epoch, number, digest[2];
	int64_t coordinate; /* -1: any */
	int64_t valid;      /* 0: the state is nothing */
} phx_label;

typedef struct {
	double sum_squares, abs_max;
	int64_t non_finite;
} phx_stats;

typedef struct {
	uint64_t digest[2];
	phx_stats stats;
} phx_digest_t;

PHX_API int phx_abi(void);

/* phx_create checks what is registered and plans the segment. The tensors are copied, the memory they name is not. On an
 * error *out is a client for phx_error alone, or NULL without memory. */
PHX_API int phx_create(const phx_config *config, const phx_tensor *tensors, int64_t count, phx_client **out);
PHX_API const char *phx_error(const phx_client *c);
/* phx_segment_bytes is what the trainer itself uses of its segment. */
PHX_API int64_t phx_segment_bytes(const phx_client *c);
PHX_API uint64_t phx_layout_hash(const phx_client *c);
PHX_API int64_t phx_slab_offset(const phx_client *c, int64_t tensor);
PHX_API int64_t phx_slab_bytes(const phx_client *c);

/* phx_attach maps what the daemon prepared and announces a fresh state, that of step 0. There are none to PHX_MAX_SLABS slabs, which
 * are used by turns. start is this process's start time, field 22 of /proc/PID/stat. */
enum { PHX_MAX_SLABS = 2 };
PHX_API int phx_attach(phx_client *c, const char *page, const char *bells, const char *segment, const char *const *slabs, int slab_count, uint64_t start);
/* phx_attach_alone makes a world of one without a daemon: the same calls, the same bits. */
PHX_API int phx_attach_alone(phx_client *c);
/* phx_start_pulse lets the daemon see the end of this process before its memory is unmapped. It starts a thread that sleeps. */
PHX_API int phx_start_pulse(phx_client *c);
/* phx_close ends the waits of other threads (PHX_E_ILLEGAL) and the library's threads, and unmaps everything; c is gone. */
PHX_API void phx_close(phx_client *c);
/* phx_set_orphan_after changes how long a wait lasts without a living daemon, a minute otherwise. For tests. */
PHX_API void phx_set_orphan_after(phx_client *c, int64_t ns);

PHX_API int phx_begin(phx_client *c);
PHX_API const phx_begun_t *phx_begun(const phx_client *c);
/* phx_healed reports, once, whether the state was replaced and no begun step has said so: after PHX_DONE, for who reads the state. */
PHX_API int phx_healed(phx_client *c);
PHX_API int phx_wait(phx_client *c, int64_t timeout_ns);
PHX_API uint64_t phx_step(const phx_client *c);       /* of PHX_APPLY */
PHX_API int64_t phx_coordinate(const phx_client *c);  /* of PHX_COORDINATE */
PHX_API int phx_coordinate_taken(phx_client *c);
PHX_API int phx_applied(phx_client *c);
PHX_API int phx_apply_failed(phx_client *c);
PHX_API void phx_label_of(const phx_client *c, phx_label *out);

/* phx_fold starts the sums of the begun step. phx_slot_buffer is zeroed memory for the next slot's gradient. */
PHX_API int phx_fold(phx_client *c);
PHX_API float *phx_slot_buffer(phx_client *c, int64_t slot);
PHX_API int phx_slot_done(phx_client *c, int64_t slot);
PHX_API int phx_reduce(phx_client *c, int mean);
PHX_API float *phx_reduced(phx_client *c);
/* phx_reduce_counts sums up to count_elements int64 over the groups; after PHX_REDUCED the sums are in counts. */
PHX_API int phx_reduce_counts(phx_client *c, const int64_t *counts, int64_t n);
PHX_API const int64_t *phx_reduced_counts(phx_client *c);
/* phx_digest is D1 of the reduced gradient under the seed of the begun step. */
PHX_API int phx_digest(phx_client *c, phx_digest_t *out);
/* phx_vote: times are compute, reduce and digest in nanoseconds; NULL takes what the library measured. */
PHX_API int phx_vote(phx_client *c, int ok, const uint64_t digest[2], const int64_t *times);
PHX_API int phx_finish(phx_client *c, const uint64_t digest[2]);

PHX_API void phx_working(phx_client *c, uint64_t step, int64_t slot);
PHX_API void phx_progress(phx_client *c, int phase);
/* phx_at is phx_progress that names the step, too: for a process of a job without steps of ours. */
PHX_API void phx_at(phx_client *c, int phase, uint64_t step);
PHX_API void phx_preempt(phx_client *c);
PHX_API uint8_t *phx_extra(phx_client *c, int64_t *offset);
/* phx_set_address gives a tensor other memory of the same size. */
PHX_API int phx_set_address(phx_client *c, int64_t tensor, void *address);
/* phx_state_digest is D1 with seed 0 over all registered tensors. */
PHX_API int phx_state_digest(phx_client *c, phx_digest_t *out);
/* phx_notes gives away what the library has to log: lines of "LEVEL text", "" for nothing. It returns the bytes. */
PHX_API int phx_notes(phx_client *c, char *out, int size);

/* phx_superseded: the begun step is over because the seat says something else by now. */
PHX_API int phx_superseded(const phx_client *c);

/* The ring: collectives of the caller's own, from any thread. docs/protocol.md says what each operation means; offsets are those
 * of the segment, so buffers lie in phx_extra. */
typedef struct {
	uint64_t epoch, number; /* the generation; 0, 0: that of the seat */
	uint64_t op, dtype, group;
	int64_t root, count, in_offset, in_stride, in_nodes, out_offset;
	uint64_t scale, flags, reduction;
	int64_t peer;
	uint64_t tag;
	int64_t counts_offset;
} phx_descriptor;

/* phx_attach_plain is phx_attach for a process of a job without steps, which uses the ring and nothing else. */
PHX_API int phx_attach_plain(phx_client *c, const char *page, const char *bells, const char *segment, uint64_t start);
/* phx_seat reads the seat into out and returns its action, or -1 while there is none. */
PHX_API int phx_seat(const phx_client *c, phx_begun_t *out);
/* phx_post posts and returns the sequence, or PHX_E_RING while 64 are under way: wait for one of them. */
PHX_API int64_t phx_post(phx_client *c, const phx_descriptor *d);
/* phx_done is PHX_PENDING, PHX_REDUCED, PHX_REVOKED or PHX_FAILED; nobody uses the buffers any more unless it is pending. It may be
 * asked for the newest 4096. */
PHX_API int phx_done(phx_client *c, uint64_t sequence);
/* phx_wait_any waits until one of n is done, and returns what phx_done says of it and its place in which; or PHX_TIMEOUT,
 * PHX_INTERRUPTED, PHX_ORPHANED. */
PHX_API int phx_wait_any(phx_client *c, const uint64_t *sequences, int n, int64_t timeout_ns, int *which);
/* phx_abort ends all operations of a group everywhere. It returns a ticket for phx_aborted, or PHX_E_RING while eight are
 * under way. */
PHX_API int64_t phx_abort(phx_client *c, uint64_t epoch, uint64_t number, uint64_t group);
/* phx_aborted is PHX_PENDING, PHX_REDUCED once the abort was carried out, or PHX_FAILED for a group that cannot be aborted. */
PHX_API int phx_aborted(phx_client *c, int64_t ticket);

/* Writes the samples, numbers in [0, count), at places first to first + n - 1 of a run: an endless row of epochs, each a
 * permutation of its own of which the first epoch_length places are used. Returns 0, or PHX_E_ARGUMENT. */
PHX_API int phx_samples(uint64_t seed, int64_t count, int64_t epoch_length, int64_t first, int64_t n, int64_t *out);
/* D1 over tensors of the caller's, in the order of their names, whatever their own order is. */
PHX_API int phx_digest_tensors(uint64_t seed, const phx_tensor *tensors, int64_t count, phx_digest_t *out);
/* What a client of another language needs of the page, over memory of its own: a cell of words 8-byte words at an offset in
 * bytes is written, or read (the count of writes, 0 for none); the header of an empty page is written, or checked (0, or a sentence in
 * error). */
PHX_API void phx_cell_write(void *memory, int64_t at, const uint64_t *payload, int words);
PHX_API uint64_t phx_cell_read(const void *memory, int64_t at, uint64_t *payload, int words);
PHX_API void phx_word_write(void *memory, int64_t at, uint64_t value);
PHX_API void phx_page_write_header(void *memory, int daemon_bell, int trainer_bell);
PHX_API int phx_page_check(const void *memory, int64_t bytes, char *error, int error_bytes);

/* phx_force_plain turns vector instructions off, for tests. */
PHX_API void phx_force_plain(int plain);
/* phx_add_f32 sets left[i] += right[i], phx_scale_f32 out[i] = in[i] * s, with the bits of kernels for what is not a number too. */
PHX_API void phx_add_f32(float *left, const float *right, int64_t n);
PHX_API void phx_scale_f32(float *out, const float *in, float s, int64_t n);
PHX_API uint64_t phx_vote_seed(uint64_t job_seed, uint64_t step);

#ifdef __cplusplus
}
#endif
#endif
