/* SPDX-License-Identifier: Apache-2.0
 *
 * The same arithmetic with AVX2, chosen at run time. Every function gives the bits of its plain form in digest.c.
 */
#ifndef PHALANX_CSRC_SIMD_H
#define PHALANX_CSRC_SIMD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "digest.h"

/* simd reports whether this processor has AVX2 and phx_force_plain has not turned it off. */
bool simd(void);

/* leaf_simd is the contribution to L of whole rows from the first of a leaf on. keys are K(q, 4j + i), see digest.c. */
void leaf_simd(const uint8_t *p, int rows, const lane_keys *k, const uint64_t keys[2][64], uint64_t l[2]);
/* stats_f32_simd takes whole blocks of 16 elements and returns how many elements it took. */
size_t stats_f32_simd(const uint8_t *p, size_t elements, double sums[16], uint32_t *top, int64_t *bad);
/* add_f32_simd and scale_f32_simd stop before the first vector with a NaN in its result, and return how many they did. */
int64_t add_f32_simd(float *left, const float *right, int64_t n);
int64_t scale_f32_simd(float *out, const float *in, float s, int64_t n);

#endif
