/* SPDX-License-Identifier: Apache-2.0
 *
 * The digest D1 and the statistics of the same data, with the bits of the Go package kernels; its doc.go
 * is the definition.
 */
#ifndef PHALANX_CSRC_DIGEST_H
#define PHALANX_CSRC_DIGEST_H

#include <stdbool.h>
#include <stdint.h>

#include "phalanx.h"

typedef struct {
	uint64_t a[2][256]; /* A(q,t) */
	uint64_t r;         /* where the polynomial is evaluated */
} lane_keys;

void lane_keys_init(lane_keys *k, uint64_t seed);

/* A root under construction, leaf by leaf. */
typedef struct {
	const lane_keys *keys;
	uint64_t sum[2], power;
	phx_stats stats;
} d1_pass;

void d1_begin(d1_pass *p, const lane_keys *keys);
/* d1_tensor adds the header leaves and the data of one tensor. Statistics are taken of float32 and float64 if asked for. */
void d1_tensor(d1_pass *p, const phx_tensor *t, bool stats);

#endif
