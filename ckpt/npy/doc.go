// SPDX-License-Identifier: Apache-2.0

// Package npy writes tensors as NumPy's .npy files, versions 1.0 and 2.0 (the latter when the header has more than 65,535
// bytes): row-major, little-endian, the data at a multiple of 64.
//
// NumPy has no element type for bf16 and the 8-bit floats. DType says what such tensors are written as: f32, which holds all
// their numbers exactly, NaN and infinities too. Everything else is written byte for byte.
package npy
