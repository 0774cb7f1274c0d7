// SPDX-License-Identifier: Apache-2.0

// Package elem knows what the bytes of elements mean: it takes their numbers out, casts them and counts what they are like.
// Elements are little-endian, as all tensors are stored.
//
// # Casts
//
// Cast rounds once, to the nearest number that the other dtype has, of two equally near ones to the one with an even last
// digit. Where PyTorch rounds a float64 first to float32 and then to a narrower type, the results can differ in the last
// digit; from 8, 16 and 32 bits they are the same. What is too large becomes infinite, or NaN in the dtypes that have no
// infinity, so that it can be seen; integers stop at the largest or least that there is. Loss counts such elements, so that a
// caller can refuse them. (PyTorch does the same with floats, but for f8_e4m3fn: since 2.15 it makes 448 of all that is larger,
// infinity included.) Casts that would drop a part of a number are refused: from complex to real ones, and from floats to integers.
//
// f8_e8m0fnu has powers of two only, no sign and no zero. It is rounded as PyTorch does it: up from halfway between two powers
// on (everything between the least two goes up), the sign is dropped, and zero becomes the least power. Negative numbers and
// zero count as lost.
//
// # Statistics
//
// A Stats takes elements block by block, in any number of goroutines if each has its own (Merge). Everything is computed from
// float64, which holds the elements of every dtype but the 64-bit integers exactly; of those the least and the largest are kept
// as integers too.
package elem
