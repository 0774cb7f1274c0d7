/* SPDX-License-Identifier: Apache-2.0 */

#include "page.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/futex.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "phalanx.h"

enum { spin_reads = 8 }; /* after how many disturbed reads the writer is let run */

uint64_t cell_read(const uint64_t *cell, uint64_t *payload, int words) {
	for (int tries = 1;; tries++) {
		uint64_t word = word_load(cell);
		if (word == 0)
			return 0;
		const uint64_t *copy = cell + 1 + (word & 1) * (uint64_t)words;
		for (int i = 0; i < words; i++)
			payload[i] = word_load(copy + i);
		if (word_load(cell) == word)
			return word >> 1;
		if (tries % spin_reads == 0)
			sched_yield();
	}
}

void cell_write(uint64_t *cell, const uint64_t *payload, int words) {
	uint64_t word = word_load(cell);
	uint64_t next = 1 - (word & 1);
	uint64_t *copy = cell + 1 + next * (uint64_t)words;
	for (int i = 0; i < words; i++)
		word_store(copy + i, payload[i]);
	word_store(cell, ((word >> 1) + 1) << 1 | next);
}

void phx_cell_write(void *memory, int64_t at, const uint64_t *payload, int words) {
	cell_write((uint64_t *)((uint8_t *)memory + at), payload, words);
}

uint64_t phx_cell_read(const void *memory, int64_t at, uint64_t *payload, int words) {
	return cell_read((const uint64_t *)((const uint8_t *)memory + at), payload, words);
}

void phx_word_write(void *memory, int64_t at, uint64_t value) { word_store((uint64_t *)((uint8_t *)memory + at), value); }

/* Without FUTEX_PRIVATE_FLAG: the word is found by its page, not by the address in one process. */
static long futex(uint32_t *word, int op, uint32_t value, const struct timespec *timeout) {
	return syscall(SYS_futex, word, op, value, timeout, NULL, 0);
}

static void bell_rouse(bell b) {
	/* A waiter counts itself before it looks at the word again, so one that is not seen here sees the new word. */
	if (__atomic_load_n(b.waiters, __ATOMIC_SEQ_CST) != 0)
		futex(b.count, FUTEX_WAKE, 1 << 30, NULL);
}

void bell_ring(bell b) {
	__atomic_add_fetch(b.count, 1, __ATOMIC_SEQ_CST);
	bell_rouse(b);
}

void bell_tell(bell b) {
	__atomic_add_fetch(b.count, 1, __ATOMIC_SEQ_CST);
	if (__atomic_load_n(b.calm, __ATOMIC_SEQ_CST) == 0)
		bell_rouse(b);
}

bell_end bell_wait(bell b, uint32_t seen, int64_t timeout_ns) {
	int64_t deadline = monotonic_ns() + timeout_ns;
	bell_end end = BELL_TIMEOUT;
	__atomic_add_fetch(b.waiters, 1, __ATOMIC_SEQ_CST);
	for (;;) {
		if (bell_count(b) != seen) {
			end = BELL_RUNG;
			break;
		}
		int64_t left = deadline - monotonic_ns();
		if (left <= 0)
			break;
		struct timespec ts = {left / 1000000000, left % 1000000000};
		if (futex(b.count, FUTEX_WAIT, seen, &ts) != 0 && errno == EINTR) {
			end = bell_count(b) != seen ? BELL_RUNG : BELL_INTERRUPTED;
			break;
		}
	}
	__atomic_sub_fetch(b.waiters, 1, __ATOMIC_SEQ_CST);
	return end;
}

int region_open(const char *path, region *r, char *error, size_t n) {
	int fd = open(path, O_RDWR | O_NOFOLLOW | O_CLOEXEC);
	if (fd < 0) {
		snprintf(error, n, "map %s: %s", path, strerror(errno));
		return -1;
	}
	struct stat st;
	int result = -1;
	void *at = MAP_FAILED;
	if (fstat(fd, &st) != 0)
		snprintf(error, n, "map %s: %s", path, strerror(errno));
	else if (!S_ISREG(st.st_mode) || st.st_size < 8)
		snprintf(error, n, "map %s: not a regular file, or %lld bytes only", path, (long long)st.st_size);
	else if ((at = mmap(NULL, (size_t)st.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0)) == MAP_FAILED)
		snprintf(error, n, "map %s: %s", path, strerror(errno));
	else if (madvise(at, (size_t)st.st_size, MADV_DONTFORK) != 0) {
		snprintf(error, n, "map %s: keep it from children: %s", path, strerror(errno));
		munmap(at, (size_t)st.st_size);
	} else {
		r->at = at;
		r->bytes = (size_t)st.st_size;
		result = 0;
	}
	close(fd); /* the mapping stays, and children find no descriptor */
	return result;
}

int region_anonymous(size_t bytes, region *r, char *error, size_t n) {
	void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (at == MAP_FAILED) {
		snprintf(error, n, "reserve %zu bytes of memory: %s", bytes, strerror(errno));
		return -1;
	}
	madvise(at, bytes, MADV_DONTFORK);
	r->at = at;
	r->bytes = bytes;
	return 0;
}

void region_unmap(region *r) {
	if (r->at != NULL)
		munmap(r->at, r->bytes);
	r->at = NULL;
	r->bytes = 0;
}

void page_write_header(uint64_t *page, int daemon_bell, int trainer_bell) {
	word_store(page + PHALANX_HEADER_VERSION, (uint64_t)PHALANX_MAJOR << 32 | PHALANX_MINOR);
	word_store(page + PHALANX_HEADER_SIZE, PHALANX_PAGE_BYTES);
	word_store(page + PHALANX_HEADER_DAEMON_BELL, (uint64_t)daemon_bell);
	word_store(page + PHALANX_HEADER_TRAINER_BELL, (uint64_t)trainer_bell);
	word_store(page + PHALANX_HEADER_MAGIC, PHALANX_MAGIC);
}

int page_check(const region *r, const char *path, char *error, size_t n) {
	if (r->bytes < PHALANX_PAGE_BYTES) {
		snprintf(error, n, "%s: %zu bytes, want %d: not a control page", path, r->bytes, PHALANX_PAGE_BYTES);
		return -1;
	}
	const uint64_t *w = (const uint64_t *)r->at;
	uint64_t magic = word_load(w + PHALANX_HEADER_MAGIC), version = word_load(w + PHALANX_HEADER_VERSION);
	if (magic != PHALANX_MAGIC) {
		snprintf(error, n, "%s: magic %#" PRIx64 ": not a control page", path, magic);
		return -1;
	}
	if (version >> 32 != PHALANX_MAJOR) {
		snprintf(error, n, "%s: layout %" PRIu64 ".%u, this is %d.%d; run daemon and client of one release", path, version >> 32,
			(unsigned)version, PHALANX_MAJOR, PHALANX_MINOR);
		return -1;
	}
	uint64_t size = word_load(w + PHALANX_HEADER_SIZE);
	if (size < PHALANX_PAGE_BYTES || size > r->bytes) {
		snprintf(error, n, "%s: size word %" PRIu64 " in a file of %zu bytes: not a control page", path, size, r->bytes);
		return -1;
	}
	if (word_load(w + PHALANX_HEADER_DAEMON_BELL) >= PHALANX_BELL_LINES || word_load(w + PHALANX_HEADER_TRAINER_BELL) >= PHALANX_BELL_LINES) {
		snprintf(error, n, "%s: a bell beyond line %d: not a control page", path, PHALANX_BELL_LINES);
		return -1;
	}
	return 0;
}

void phx_page_write_header(void *memory, int daemon_bell, int trainer_bell) { page_write_header(memory, daemon_bell, trainer_bell); }

int phx_page_check(const void *memory, int64_t bytes, char *error, int error_bytes) {
	region r = {(uint8_t *)memory, (size_t)bytes};
	return page_check(&r, "page", error, (size_t)error_bytes);
}

static int64_t clock_ns(clockid_t clock) {
	struct timespec ts = {0, 0};
	clock_gettime(clock, &ts);
	return (int64_t)ts.tv_sec * 1000000000 + ts.tv_nsec;
}

int64_t boottime_ns(void) { return clock_ns(CLOCK_BOOTTIME); }
int64_t monotonic_ns(void) { return clock_ns(CLOCK_MONOTONIC); }

uint64_t process_start(int64_t pid) {
	char path[64], text[1024];
	snprintf(path, sizeof path, "/proc/%" PRId64 "/stat", pid);
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return 0;
	ssize_t got = read(fd, text, sizeof text - 1);
	close(fd);
	if (got <= 0)
		return 0;
	text[got] = 0;
	/* The name in parentheses may hold anything, so fields count from the last parenthesis: state is field 3. */
	char *at = strrchr(text, ')');
	if (at == NULL || at[1] != ' ' || at[2] == 'Z' || at[2] == 'X')
		return 0;
	at += 2;
	for (int field = 3; field < 22; field++) {
		at = strchr(at, ' ');
		if (at == NULL)
			return 0;
		at++;
	}
	return strtoull(at, NULL, 10);
}
