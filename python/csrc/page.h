/* SPDX-License-Identifier: Apache-2.0
 *
 * What trainer and daemon share: cells and words of the control page, bells, and mapped files. docs/protocol.md has the
 * rules; phalanx_page.h, which is generated, has the places. Everything is loaded and stored as atomic words.
 */
#ifndef PHALANX_CSRC_PAGE_H
#define PHALANX_CSRC_PAGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "phalanx_page.h"

/* F(D_SEAT, RANK) is the place of a field in a payload, W(D_SEAT) the words of a payload. */
#define F(cell, field) PHALANX_##cell##_##field
#define W(cell) PHALANX_##cell##_WORDS

static inline uint64_t word_load(const uint64_t *w) { return __atomic_load_n(w, __ATOMIC_SEQ_CST); }
static inline void word_store(uint64_t *w, uint64_t v) { __atomic_store_n(w, v, __ATOMIC_SEQ_CST); }

/* cell_read copies the current payload and returns the count of writes, 0 for a cell that was never written. */
uint64_t cell_read(const uint64_t *cell, uint64_t *payload, int words);

/* cell_write fills the copy that is not current and then flips the word: a writer may be killed at any instruction. */
void cell_write(uint64_t *cell, const uint64_t *payload, int words);

/* The answer to a numbered request is sequence << 8 | status. */
static inline uint64_t answer_make(uint64_t sequence, uint64_t status) { return sequence << 8 | (status & 0xff); }
static inline uint64_t answer_sequence(uint64_t word) { return word >> 8; }
static inline uint64_t answer_status(uint64_t word) { return word & 0xff; }

/* A bell: add one, wake who waits. Who waits reads the count, looks, then waits with the count that it read. */
typedef struct {
	uint32_t *count, *waiters, *calm;
} bell;

void bell_ring(bell b);
/* bell_tell wakes nobody who said that it is calm: that one sees what was told when it looks next. */
void bell_tell(bell b);
static inline uint32_t bell_count(bell b) { return __atomic_load_n(b.count, __ATOMIC_SEQ_CST); }

typedef enum { BELL_RUNG, BELL_TIMEOUT, BELL_INTERRUPTED } bell_end;

/* bell_wait returns when the count is not seen any more, after the timeout, or after a signal of this thread. */
bell_end bell_wait(bell b, uint32_t seen, int64_t timeout_ns);

/* A mapped file. Children of fork do not inherit it. */
typedef struct {
	uint8_t *at; /* NULL: not mapped */
	size_t bytes;
} region;

/* region_open maps a file read-write, whole. It returns 0, or -1 with a sentence in error. */
int region_open(const char *path, region *r, char *error, size_t error_bytes);
/* region_anonymous is zeroed memory of this process alone. */
int region_anonymous(size_t bytes, region *r, char *error, size_t error_bytes);
void region_unmap(region *r);

/* page_check refuses what is not a control page of this major version. It returns 0, or -1 with a sentence in error. */
int page_check(const region *r, const char *path, char *error, size_t error_bytes);
void page_write_header(uint64_t *page, int daemon_bell, int trainer_bell);

int64_t boottime_ns(void);
int64_t monotonic_ns(void);
/* process_start is field 22 of /proc/PID/stat, 0 when the process has ended. */
uint64_t process_start(int64_t pid);

#endif
