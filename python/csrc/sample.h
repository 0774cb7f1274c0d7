/* SPDX-License-Identifier: Apache-2.0 */

#ifndef PHALANX_SAMPLE_H
#define PHALANX_SAMPLE_H

#include <stdint.h>

/* Writes the samples, numbers in [0, count), at places first to first + n - 1 of a run: an endless row of epochs, each a
 * permutation of its own of which the first epoch_length places are used. Returns 0, or -1 for arguments out of range. */
int phx_samples(uint64_t seed, int64_t count, int64_t epoch_length, int64_t first, int64_t n, int64_t *out);

#endif
