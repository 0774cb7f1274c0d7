/* SPDX-License-Identifier: Apache-2.0 */

#include "simd.h"

static int force_plain;

void phx_force_plain(int plain) { __atomic_store_n(&force_plain, plain, __ATOMIC_RELAXED); }

#if defined(__x86_64__)
#include <immintrin.h>

#define AVX2 __attribute__((target("avx2")))

bool simd(void) { return !__atomic_load_n(&force_plain, __ATOMIC_RELAXED) && __builtin_cpu_supports("avx2"); }

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
		__m256i s[2][vectors];
		for (int q = 0; q < 2; q++)
			for (int v = 0; v < vectors; v++)
				s[q][v] = _mm256_setzero_si256();
		const uint8_t *at = p + 16 * lane;
		for (int j = 0; j < rows; j++, at += row)
			for (int v = 0; v < vectors; v++) {
				__m256i w = _mm256_loadu_si256((const __m256i *)(at + 32 * v)), high = _mm256_srli_epi64(w, 32);
				for (int q = 0; q < 2; q++) {
					__m256i sum = _mm256_add_epi64(_mm256_mul_epu32(w, even[q][j]), _mm256_mul_epu32(high, odd[q][j]));
					s[q][v] = _mm256_add_epi64(s[q][v], sum);
				}
			}
		for (int q = 0; q < 2; q++)
			for (int v = 0; v < vectors; v++) {
				uint64_t part[4];
				_mm256_storeu_si256((__m256i *)part, s[q][v]);
				l[q] += k->a[q][lane + 2 * v] * (part[0] + part[1]) + k->a[q][lane + 2 * v + 1] * (part[2] + part[3]);
			}
	}
}

AVX2 size_t stats_f32_simd(const uint8_t *p, size_t elements, double sums[16], uint32_t *top, int64_t *bad) {
	const __m256i magnitude = _mm256_set1_epi32(0x7fffffff), carry = _mm256_set1_epi32(0x00800000);
	__m256d s[4];
	for (int i = 0; i < 4; i++)
		s[i] = _mm256_loadu_pd(sums + 4 * i);
	__m256i most = _mm256_setzero_si256(), count = _mm256_setzero_si256(); /* a leaf has fewer elements than 32 bits count */
	size_t e = 0;
	for (; e + 16 <= elements; e += 16)
		for (int half = 0; half < 2; half++) {
			__m256 x = _mm256_loadu_ps((const float *)(p + 4 * e + 32 * half));
			__m256d low = _mm256_cvtps_pd(_mm256_castps256_ps128(x)), high = _mm256_cvtps_pd(_mm256_extractf128_ps(x, 1));
			s[2 * half] = _mm256_add_pd(s[2 * half], _mm256_mul_pd(low, low));
			s[2 * half + 1] = _mm256_add_pd(s[2 * half + 1], _mm256_mul_pd(high, high));
			__m256i b = _mm256_and_si256(_mm256_castps_si256(x), magnitude);
			most = _mm256_max_epu32(most, b);
			count = _mm256_add_epi32(count, _mm256_srli_epi32(_mm256_add_epi32(b, carry), 31));
		}
	for (int i = 0; i < 4; i++)
		_mm256_storeu_pd(sums + 4 * i, s[i]);
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
