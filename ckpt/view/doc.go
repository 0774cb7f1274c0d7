// SPDX-License-Identifier: Apache-2.0

// Package view reads checkpoints of every kind that Phalanx knows in one way: as tensors that are cut into shards, and each
// shard as a byte range of an object.
//
// A View never writes and executes nothing that it reads. What a place holds is told by its content, not by its name; what
// only looks like a checkpoint is refused with what it looks like.
//
// # Reading
//
// ReadBox reads any N-dimensional box of a tensor, whatever mesh it was saved on. Stream reads whole tensors from first to last
// element in constant memory. Both fetch only the ranges that they need; ranges of an object that lie near each other are
// fetched as one. Plan says what that costs before anything is read.
//
// # What is verified
//
// A shard that has a checksum is verified as a whole, because its checksum covers all of it:
//   - ReadBox fetches the whole shard even where the box needs a part of it, and gives nothing back before its checksum was
//     compared. A shard of more than 64 MiB is read through once for its checksum, and then in the ranges that are needed;
//   - Stream meets the bytes of each shard in order, so it sums them as they pass and compares after the last one. A consumer
//     must not publish what it got before Stream returned nil;
//   - a shard that shares its stored bytes with others, or that is not row-major, is read through once for its checksum, and
//     then in ranges.
//
// Shards without a checksum (safetensors) are read in ranges.
package view
