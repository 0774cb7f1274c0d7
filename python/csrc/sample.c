/* SPDX-License-Identifier: Apache-2.0 */

/* Which samples a slot of a step holds: a seeded permutation of each epoch, as a function without tables or state. The Go
 * trainer of the demo has the same (cmd/phalanx-lm/lm/samples.go), and a test compares both. */

#include <stdint.h>

#include "phalanx.h"

static uint64_t mix(uint64_t z) {
	z ^= z >> 30;
	z *= 0xbf58476d1ce4e5b9ull;
	z ^= z >> 27;
	z *= 0x94d049bb133111ebull;
	return z ^ z >> 31;
}

enum { ROUNDS = 6 };

/* A Feistel network over the smallest even number of bits that hold count, walked until it lands inside. */
static int64_t permute(uint64_t key, int64_t count, int64_t place) {
	int bits = 0;
	for (uint64_t c = (uint64_t)(count - 1); c != 0; c >>= 1)
		bits++;
	int half = (bits + 1) / 2;
	if (half < 1)
		half = 1;
	uint64_t mask = (1ull << half) - 1, x = (uint64_t)place;
	do {
		uint64_t left = x >> half, right = x & mask;
		for (uint64_t r = 0; r < ROUNDS; r++) {
			uint64_t next = left ^ (mix(key + mix(right + (r << 32))) & mask);
			left = right;
			right = next;
		}
		x = left << half | right;
	} while (x >= (uint64_t)count);
	return (int64_t)x;
}

int phx_samples(uint64_t seed, int64_t count, int64_t epoch_length, int64_t first, int64_t n, int64_t *out) {
	if (count < 1 || epoch_length < 1 || epoch_length > count || first < 0 || n < 0 || first > INT64_MAX - n)
		return PHX_E_ARGUMENT;
	for (int64_t i = 0; i < n; i++) {
		uint64_t epoch = (uint64_t)((first + i) / epoch_length);
		out[i] = permute(mix(seed ^ mix(epoch + 1)), count, (first + i) % epoch_length);
	}
	return 0;
}
