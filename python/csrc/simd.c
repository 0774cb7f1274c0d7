/* SPDX-License-Identifier: Apache-2.0 */

#include "simd.h"

static int force_plain;

void phx_force_plain(int plain) { __atomic_store_n(&force_plain, plain, __ATOMIC_RELAXED); }

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>

#define AVX2 __attribute__((target("avx2")))

/* have_avx2 asks the processor, and whether the kernel keeps the wide registers. __builtin_cpu_supports wants a part of libgcc that
 * not every toolchain links. */
static bool have_avx2(void) {
	unsigned a, b, c, d, low, high;
	if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_OSXSAVE) || !(c & bit_AVX))
		return false;
	__asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
	return (low & 6) == 6 && __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b & bit_AVX2);
}

bool simd(void) {
	static int known; /* 1: no, 2: yes */
	int k = __atomic_load_n(&known, __ATOMIC_RELAXED);
	if (k == 0) {
		k = have_avx2() ? 2 : 1;
		__atomic_store_n(&known, k, __ATOMIC_RELAXED);
	}
	return k == 2 && !__atomic_load_n(&force_plain, __ATOMIC_RELAXED);
}

enum { vectors = 4 /* 32 bytes each that are summed at a time: 8 lanes */, row = 4096 };

/* Two lanes of four words are a vector. A product takes the even words of it, and the odd ones once they are shifted down; so the
 * two halves of a lane's sum stand in neighbouring 64-bit places until all rows are added. */
AVX2 void leaf_simd(const uint8_t *p, int rows, const lane_keys *k, const uint64_t keys[2][64], uint64_t l[2]) {
	__m256i even[2][16], odd[2][16];
	for (int q = 0; q < 2; q++)
		for (int j = 0; j < rows; j++) {
			const uint64_t *w = keys[q] + 4 * j;
			even[q][j] = _mm256_setr_epi64x((long long)w[0], (long long)w[2], (long long)w[0], (long long)w[2]);
			odd[q][j] = _mm256_setr_epi64x((long long)w[1], (long long)w[3], (long long)w[1], (long long)w[3]);
		}
	l[0] = l[1] = 0;
	for (int lane = 0; lane < 256; lane += 2 * vectors) {
		/* Spelled out: eight sums that stay in registers. */
		__m256i s0 = _mm256_setzero_si256(), s1 = s0, s2 = s0, s3 = s0, t0 = s0, t1 = s0, t2 = s0, t3 = s0;
		const uint8_t *at = p + 16 * lane;
		for (int j = 0; j < rows; j++, at += row) {
			const __m256i e0 = even[0][j], o0 = odd[0][j], e1 = even[1][j], o1 = odd[1][j];
#define ADD(v, s, t)                                                                                                      \
	{                                                                                                                     \
		__m256i w = _mm256_loadu_si256((const __m256i *)(at + 32 * v)), high = _mm256_srli_epi64(w, 32);                   \
		s = _mm256_add_epi64(s, _mm256_add_epi64(_mm256_mul_epu32(w, e0), _mm256_mul_epu32(high, o0)));                     \
		t = _mm256_add_epi64(t, _mm256_add_epi64(_mm256_mul_epu32(w, e1), _mm256_mul_epu32(high, o1)));                     \
	}
			ADD(0, s0, t0)
			ADD(1, s1, t1)
			ADD(2, s2, t2)
			ADD(3, s3, t3)
#undef ADD
		}
		const __m256i sums[2][vectors] = {{s0, s1, s2, s3}, {t0, t1, t2, t3}};
		for (int q = 0; q < 2; q++)
			for (int v = 0; v < vectors; v++) {
				uint64_t part[4];
				_mm256_storeu_si256((__m256i *)part, sums[q][v]);
				l[q] += k->a[q][lane + 2 * v] * (part[0] + part[1]) + k->a[q][lane + 2 * v + 1] * (part[2] + part[3]);
			}
	}
}

AVX2 size_t stats_f32_simd(const uint8_t *p, size_t elements, double sums[16], uint32_t *top, int64_t *bad) {
	const __m256i magnitude = _mm256_set1_epi32(0x7fffffff), carry = _mm256_set1_epi32(0x00800000);
	__m256d s0 = _mm256_loadu_pd(sums), s1 = _mm256_loadu_pd(sums + 4), s2 = _mm256_loadu_pd(sums + 8), s3 = _mm256_loadu_pd(sums + 12);
	__m256i most = _mm256_setzero_si256(), count = _mm256_setzero_si256(); /* a leaf has fewer elements than 32 bits count */
	size_t e = 0;
	for (; e + 16 <= elements; e += 16) {
#define TAKE(at, low, high)                                                                                              \
	{                                                                                                                     \
		__m256 x = _mm256_loadu_ps((const float *)(p + 4 * e + at));                                                       \
		__m256d x0 = _mm256_cvtps_pd(_mm256_castps256_ps128(x)), x1 = _mm256_cvtps_pd(_mm256_extractf128_ps(x, 1));         \
		low = _mm256_add_pd(low, _mm256_mul_pd(x0, x0));                                                                   \
		high = _mm256_add_pd(high, _mm256_mul_pd(x1, x1));                                                                 \
		__m256i b = _mm256_and_si256(_mm256_castps_si256(x), magnitude);                                                   \
		most = _mm256_max_epu32(most, b);                                                                                  \
		count = _mm256_add_epi32(count, _mm256_srli_epi32(_mm256_add_epi32(b, carry), 31));                                 \
	}
		TAKE(0, s0, s1)
		TAKE(32, s2, s3)
#undef TAKE
	}
	_mm256_storeu_pd(sums, s0);
	_mm256_storeu_pd(sums + 4, s1);
	_mm256_storeu_pd(sums + 8, s2);
	_mm256_storeu_pd(sums + 12, s3);
	uint32_t tops[8], counts[8];
	_mm256_storeu_si256((__m256i *)tops, most);
	_mm256_storeu_si256((__m256i *)counts, count);
	for (int i = 0; i < 8; i++) {
		*top = tops[i] > *top ? tops[i] : *top;
		*bad += counts[i];
	}
	return e;
}

AVX2 int64_t add_f32_simd(float *left, const float *right, int64_t n) {
	int64_t i = 0;
	for (; i + 8 <= n; i += 8) {
		__m256 sum = _mm256_add_ps(_mm256_loadu_ps(left + i), _mm256_loadu_ps(right + i));
		if (_mm256_movemask_ps(_mm256_cmp_ps(sum, sum, _CMP_UNORD_Q)) != 0)
			break;
		_mm256_storeu_ps(left + i, sum);
	}
	return i;
}

AVX2 int64_t scale_f32_simd(float *out, const float *in, float s, int64_t n) {
	const __m256 by = _mm256_set1_ps(s);
	int64_t i = 0;
	for (; i + 8 <= n; i += 8) {
		__m256 product = _mm256_mul_ps(_mm256_loadu_ps(in + i), by);
		if (_mm256_movemask_ps(_mm256_cmp_ps(product, product, _CMP_UNORD_Q)) != 0)
			break;
		_mm256_storeu_ps(out + i, product);
	}
	return i;
}

#else

bool simd(void) { return false; }
void leaf_simd(const uint8_t *p, int rows, const lane_keys *k, const uint64_t keys[2][64], uint64_t l[2]) {
	(void)p, (void)rows, (void)k, (void)keys, (void)l;
}
size_t stats_f32_simd(const uint8_t *p, size_t n, double sums[16], uint32_t *top, int64_t *bad) {
	(void)p, (void)n, (void)sums, (void)top, (void)bad;
	return 0;
}
int64_t add_f32_simd(float *left, const float *right, int64_t n) {
	(void)left, (void)right, (void)n;
	return 0;
}
int64_t scale_f32_simd(float *out, const float *in, float s, int64_t n) {
	(void)out, (void)in, (void)s, (void)n;
	return 0;
}

#endif
