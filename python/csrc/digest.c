/* SPDX-License-Identifier: Apache-2.0 */

#include "digest.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "simd.h"
#include "workers.h"

enum { leaf_bytes = 65536, rows = 16, lanes = 256, row_bytes = 4096, accumulators = 16 };

static const uint64_t prime = ((uint64_t)1 << 61) - 1;

static uint64_t mix(uint64_t z) {
	z ^= z >> 30;
	z *= 0xbf58476d1ce4e5b9u;
	z ^= z >> 27;
	z *= 0x94d049bb133111ebu;
	return z ^ z >> 31;
}

uint64_t phx_vote_seed(uint64_t job_seed, uint64_t step) { return mix(job_seed ^ mix(step)); }

/* Word keys K(q,c), widened for 64-bit products. */
static uint64_t word_keys[2][4 * rows];
static pthread_once_t word_keys_once = PTHREAD_ONCE_INIT;

static void make_word_keys(void) {
	for (uint64_t q = 0; q < 2; q++)
		for (uint64_t c = 0; c < 4 * rows; c++)
			word_keys[q][c] = (uint32_t)mix(c + 64 * q + 1) | 1;
}

void lane_keys_init(lane_keys *k, uint64_t seed) {
	for (uint64_t q = 0; q < 2; q++)
		for (uint64_t t = 0; t < lanes; t++)
			k->a[q][t] = mix(seed ^ mix(lanes + t + lanes * q)) | 1;
	pthread_once(&word_keys_once, make_word_keys);
	k->r = 1 + mix(seed + 7) % (prime - 1);
}

static uint64_t add_mod(uint64_t x, uint64_t y) {
	uint64_t s = x + y;
	return s >= prime ? s - prime : s;
}

/* 2^61 is 1, so the bits above the 61st are added to those below. */
static uint64_t mul_mod(uint64_t x, uint64_t y) {
	unsigned __int128 p = (unsigned __int128)x * y;
	return add_mod((uint64_t)p & prime, (uint64_t)(p >> 61) % prime);
}

/* leaf_plain adds the contribution to L of n bytes, whose first is the first of the given row. */
static void leaf_plain(const uint8_t *p, size_t n, int row, const lane_keys *k, uint64_t l[2]) {
	for (; n > 0; row++) {
		const uint64_t *key[2] = {word_keys[0] + 4 * row, word_keys[1] + 4 * row};
		size_t here = n < row_bytes ? n : row_bytes;
		const uint8_t *at = p;
		p += here;
		n -= here;
		for (int t = 0; here > 0; t++) {
			uint32_t w[4] = {0, 0, 0, 0}; /* what is missing counts as 0 */
			size_t part = here < sizeof w ? here : sizeof w;
			memcpy(w, at, part);
			at += part;
			here -= part;
			l[0] += k->a[0][t] * (key[0][0] * w[0] + key[0][1] * w[1] + key[0][2] * w[2] + key[0][3] * w[3]);
			l[1] += k->a[1][t] * (key[1][0] * w[0] + key[1][1] * w[1] + key[1][2] * w[2] + key[1][3] * w[3]);
		}
	}
}

static void leaf(const uint8_t *p, size_t n, const lane_keys *k, uint64_t l[2]) {
	size_t whole = 0;
	l[0] = l[1] = 0;
	if (simd() && n >= row_bytes) {
		whole = n / row_bytes;
		leaf_simd(p, (int)whole, k, (const uint64_t(*)[64])word_keys, l);
	}
	leaf_plain(p + whole * row_bytes, n - whole * row_bytes, (int)whole, k, l);
}

/* Statistics of one leaf. Element e is squared and added to accumulator e mod 16; the order is part of the definition. */
static phx_stats stats_f32(const uint8_t *p, size_t n) {
	double sums[accumulators] = {0};
	uint32_t top = 0; /* the largest magnitude as bits: they are ordered like the numbers, NaN above all */
	int64_t bad = 0;
	for (size_t e = simd() ? stats_f32_simd(p, n / 4, sums, &top, &bad) : 0; e < n / 4; e++) {
		uint32_t b;
		float x;
		memcpy(&b, p + 4 * e, 4);
		memcpy(&x, &b, 4);
		sums[e % accumulators] += (double)x * (double)x;
		b &= 0x7fffffff;
		top = b > top ? b : top;
		bad += (b + 0x00800000) >> 31;
	}
	for (int width = accumulators / 2; width > 0; width /= 2)
		for (int i = 0; i < width; i++)
			sums[i] += sums[i + width];
	float top_float;
	memcpy(&top_float, &top, 4);
	return (phx_stats){sums[0], top_float, bad};
}

static phx_stats stats_f64(const uint8_t *p, size_t n) {
	double sums[accumulators] = {0};
	uint64_t top = 0;
	int64_t bad = 0;
	for (size_t e = 0; e < n / 8; e++) {
		uint64_t b;
		double x;
		memcpy(&b, p + 8 * e, 8);
		memcpy(&x, &b, 8);
		sums[e % accumulators] += x * x; /* compiled without contraction */
		b &= ~((uint64_t)1 << 63);
		top = b > top ? b : top;
		bad += (int64_t)((b + ((uint64_t)1 << 52)) >> 63);
	}
	for (int width = accumulators / 2; width > 0; width /= 2)
		for (int i = 0; i < width; i++)
			sums[i] += sums[i + width];
	double top_double;
	memcpy(&top_double, &top, 8);
	return (phx_stats){sums[0], top_double, bad};
}

typedef enum { NO_STATS, STATS_F32, STATS_F64 } stats_kind;

static stats_kind stats_of(const char *dtype) {
	static const char *const f32[] = {"f32", "F32", "float32", "torch.float32"};
	static const char *const f64[] = {"f64", "F64", "float64", "torch.float64"};
	for (int i = 0; i < 4; i++) {
		if (strcmp(dtype, f32[i]) == 0)
			return STATS_F32;
		if (strcmp(dtype, f64[i]) == 0)
			return STATS_F64;
	}
	return NO_STATS;
}

void d1_begin(d1_pass *p, const lane_keys *keys) {
	memset(p, 0, sizeof *p);
	p->keys = keys;
	p->power = 1;
}

static void add_leaf(d1_pass *p, const uint64_t leaf[2]) {
	uint64_t next = mul_mod(p->power, p->keys->r);
	for (int q = 0; q < 2; q++)
		p->sum[q] = add_mod(p->sum[q], add_mod(mul_mod(p->power, leaf[q] >> 32), mul_mod(next, leaf[q] & 0xffffffff)));
	p->power = mul_mod(next, p->keys->r);
}

static void add_stats(phx_stats *to, phx_stats s) {
	to->sum_squares += s.sum_squares;
	to->abs_max = isnan(to->abs_max) || isnan(s.abs_max) ? NAN : (s.abs_max > to->abs_max ? s.abs_max : to->abs_max);
	to->non_finite += s.non_finite;
}

/* A run of bytes that is cut into leaves of its own, and their results by number. */
typedef struct {
	const uint8_t *data;
	size_t bytes;
	stats_kind kind;
	const lane_keys *keys;
	uint64_t (*digests)[2];
	phx_stats *stats;
} run;

static void run_leaves(void *arg, int64_t first, int64_t end) {
	run *r = arg;
	for (int64_t i = first; i < end; i++) {
		const uint8_t *at = r->data + i * leaf_bytes;
		size_t left = r->bytes - (size_t)(i * leaf_bytes), n = left < leaf_bytes ? left : leaf_bytes;
		leaf(at, n, r->keys, r->digests[i]);
		if (r->kind != NO_STATS)
			r->stats[i] = r->kind == STATS_F32 ? stats_f32(at, n) : stats_f64(at, n);
	}
}

enum { claim_leaves = 16, batch_leaves = 4096 /* 256 MiB: what is kept of them is small */, max_workers = 16 };

/* add_run digests leaves in any order and adds them in theirs: the result does not know how many threads there were. */
static void add_run(d1_pass *p, const uint8_t *data, size_t n, stats_kind kind) {
	uint64_t few[claim_leaves][2], (*digests)[2] = few;
	phx_stats few_stats[claim_leaves], *stats = few_stats;
	int64_t leaves = (int64_t)((n + leaf_bytes - 1) / leaf_bytes), batch = claim_leaves;
	if (leaves > claim_leaves) {
		batch = leaves < batch_leaves ? leaves : batch_leaves;
		digests = malloc((size_t)batch * sizeof *digests);
		stats = malloc((size_t)batch * sizeof *stats);
		if (digests == NULL || stats == NULL) { /* then a few at a time */
			free(digests);
			free(stats);
			digests = few;
			stats = few_stats;
			batch = claim_leaves;
		}
	}
	for (int64_t first = 0; first < leaves; first += batch) {
		int64_t here = leaves - first < batch ? leaves - first : batch;
		run r = {data + first * leaf_bytes, n - (size_t)(first * leaf_bytes), kind, p->keys, digests, stats};
		int64_t workers = here / claim_leaves;
		if (workers > max_workers)
			workers = max_workers;
		if (workers > 1 && workers > processors())
			workers = processors();
		for_each(here, claim_leaves, (int)workers, run_leaves, &r);
		for (int64_t i = 0; i < here; i++) {
			add_leaf(p, digests[i]);
			if (kind != NO_STATS)
				add_stats(&p->stats, stats[i]);
		}
	}
	if (digests != few) {
		free(digests);
		free(stats);
	}
}

void d1_tensor(d1_pass *p, const phx_tensor *t, bool stats) {
	size_t name = strlen(t->name), dtype = strlen(t->dtype);
	size_t room = name + dtype + 4 + 21 * (size_t)t->dims;
	char *header = malloc(room);
	if (header == NULL)
		abort(); /* a few hundred bytes */
	memcpy(header, t->name, name + 1);
	memcpy(header + name + 1, t->dtype, dtype + 1);
	size_t at = name + dtype + 2;
	for (int i = 0; i < t->dims; i++)
		at += (size_t)snprintf(header + at, room - at, i == 0 ? "%lld" : ",%lld", (long long)t->shape[i]);
	header[at++] = 0;
	add_run(p, (const uint8_t *)header, at, NO_STATS);
	free(header);
	add_run(p, t->address, (size_t)t->bytes, stats ? stats_of(t->dtype) : NO_STATS);
}

typedef struct {
	const phx_tensor *tensor;
	int64_t index;
} named;

static int by_name(const void *a, const void *b) {
	const named *x = a, *y = b;
	int order = strcmp(x->tensor->name, y->tensor->name);
	return order != 0 ? order : (x->index > y->index) - (x->index < y->index);
}

int phx_digest_tensors(uint64_t seed, const phx_tensor *tensors, int64_t count, phx_digest_t *out) {
	named *order = malloc(sizeof(named) * (size_t)(count > 0 ? count : 1));
	if (order == NULL)
		return PHX_E_MEMORY;
	for (int64_t i = 0; i < count; i++)
		order[i] = (named){&tensors[i], i};
	qsort(order, (size_t)count, sizeof(named), by_name);
	lane_keys keys;
	lane_keys_init(&keys, seed);
	d1_pass p;
	d1_begin(&p, &keys);
	for (int64_t i = 0; i < count; i++)
		d1_tensor(&p, order[i].tensor, true);
	free(order);
	out->digest[0] = p.sum[0];
	out->digest[1] = p.sum[1];
	out->stats = p.stats;
	if (isnan(out->stats.sum_squares))
		out->stats.sum_squares = NAN; /* one NaN for all */
	return 0;
}

/* NaN follows the rule of kernels: the first operand if it is one, else the second, made quiet; an invalid operation gives
 * the negative quiet NaN. A compiler may swap operands, so it is spelled out. */
static float nan_of(float a, float b) {
	uint32_t bits = 0xffc00000;
	if (a != a)
		memcpy(&bits, &a, 4);
	else if (b != b)
		memcpy(&bits, &b, 4);
	bits |= 1u << 22;
	float out;
	memcpy(&out, &bits, 4);
	return out;
}

void phx_add_f32(float *left, const float *right, int64_t n) {
	for (int64_t i = 0; i < n;) {
		if (simd())
			i += add_f32_simd(left + i, right + i, n - i);
		for (int64_t end = i + 8 < n ? i + 8 : n; i < end; i++) {
			float sum = left[i] + right[i];
			left[i] = sum == sum ? sum : nan_of(left[i], right[i]);
		}
	}
}

void phx_scale_f32(float *out, const float *in, float s, int64_t n) {
	for (int64_t i = 0; i < n;) {
		if (simd())
			i += scale_f32_simd(out + i, in + i, s, n - i);
		for (int64_t end = i + 8 < n ? i + 8 : n; i < end; i++) {
			float product = in[i] * s;
			out[i] = product == product ? product : nan_of(in[i], s);
		}
	}
}
