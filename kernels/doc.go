// SPDX-License-Identifier: Apache-2.0

// Package kernels holds the arithmetic that must give the same bits everywhere: the digest D1, the statistics that are
// taken in the same pass, and the vector operations of reductions. Each has a plain Go form and, on amd64 with AVX2, an
// assembly form chosen at run time; both give the same bits, for every length and alignment. It starts no goroutine that
// outlives a call and keeps no state besides [Force].
//
// # The digest D1
//
// D1 maps a seed and a list of tensors to two 64-bit roots (32 hex digits, first key set first). All of it is defined
// over bytes, so it does not depend on grid size, vector width or the number of workers.
//
// Words. mix is the finaliser of SplitMix64:
//
//	mix(z): z ^= z>>30; z *= 0xbf58476d1ce4e5b9; z ^= z>>27; z *= 0x94d049bb133111eb; z ^= z>>31
//
// Keys, for the key sets q = 0 and q = 1:
//
//	K(q,c) = (mix(c + 64q + 1) mod 2^32) | 1           c = 0..63, the same for every seed
//	A(q,t) = mix(seed XOR mix(256 + t + 256q)) | 1     t = 0..255
//	r      = 1 + mix(seed + 7) mod (p - 1)             p = 2^61 - 1, the same for both key sets
//
// Leaf. A leaf is up to 64 KiB, read as little-endian 32-bit words; a shorter one is padded with 0. The word with index
// j·1024 + t·4 + i is called w(j,t,i): row j = 0..15, lane t = 0..255, i = 0..3. The digest of a leaf is
//
//	S(q,t) = sum over j, i of K(q,4j+i) · w(j,t,i)     mod 2^64
//	L(q)   = sum over t of A(q,t) · S(q,t)             mod 2^64
//
// Leaves of a tensor. First a header leaf with the bytes "name NUL dtype NUL dims NUL", dims being the shape in decimal
// digits separated by commas (nothing for a scalar); then the tensor's bytes, contiguous and little-endian, cut into
// leaves. A tensor without bytes has the header leaf only. A header longer than a leaf is cut into leaves like data.
//
// Root. Every leaf gives two coefficients, the high and then the low 32 bits of L. For the coefficients c(0), c(1), … of
// a sequence of leaves, counted from the first header leaf,
//
//	root(q) = sum over k of c(k) · r^k                 mod p
//
// with ascending powers: it is a plain sum, not Horner's order, so leaf ranges that were computed apart are added up once
// each is multiplied by r^(2·first leaf). [TensorDigest] is the root of one tensor's leaves. The job root, [Digest], is
// the root of the leaves of all tensors, one after the other, in the order of their names as bytes; hence
//
//	job(q) = sum over tensors of r^(2·leaves before it) · tensor(q)     mod p
//
// which is what [Combine] computes from tensor roots and leaf counts. Tensors with equal names keep their given order.
//
// What it promises: a change that is confined to one 32-bit word changes both L with certainty, because |K·d| < 2^64 and A
// is odd; other changes inside a leaf are missed with probability at most 2^-26.8 for each key set and seed; a set of n
// changed leaves is missed by the polynomial with at most 2n/p. D1 is not cryptographic.
//
// # Statistics
//
// [DigestStats] reads the data once more out of the cache, leaf by leaf, for float32 and float64 tensors. The sum of
// squares has a fixed order: inside a leaf, element e is squared and added to accumulator e mod 16 (float64 throughout;
// a float32's square is exact), then accumulator k takes k+8, then k+4, k+2, k+1; the sums of leaves are added one after
// the other in leaf order. The result does not depend on the number of goroutines or on the instruction set.
//
// # NaN
//
// Sums and products follow one rule on every machine, that of x86: the first operand if it is a NaN, else the second,
// made quiet; an invalid operation (Inf - Inf, 0 · Inf) gives the negative quiet NaN without payload. Denormals are kept,
// and -0 + -0 is -0.
//
// Numbers in memory are little-endian: the package is for little-endian machines (amd64, arm64).
package kernels
