// SPDX-License-Identifier: Apache-2.0

// Package dcp speaks the format of PyTorch's Distributed Checkpoint (torch.distributed.checkpoint, "DCP"): its files of
// records and its index, written so that every PyTorch from 2.6 on reads them, and read whatever PyTorch wrote them.
//
// A DCP checkpoint is a folder:
//
//	.metadata         the index (Metadata): a pickle of tensors, their chunks, and where each chunk's record is
//	__RANK_N.distcp   records, one after another, at any offsets; the index says where
//
// A record is a complete torch.save file of one tensor (or of one Python object). Nothing else is needed: to load such a
// folder, plain torch.distributed.checkpoint.load wants only PyTorch.
//
// # Records as they are written here
//
// A zip archive whose members are all stored, never compressed. All numbers are little-endian:
//
//	0                  archive/data.pkl, archive/version, archive/byteorder, then the local header of archive/data/0, filled
//	                   up with an extra field of zeros to exactly PayloadAt bytes
//	PayloadAt          the tensor's bytes, row-major, little-endian
//	PayloadAt+payload  the central directory and its end, TrailerLen(payload) bytes
//
// So a record that begins at a multiple of 64 has its payload at a multiple of 64, and the payload's place follows from the
// record's place alone. The header and the trailer are functions of dtype, shape, size and CRC-32 of the payload. Members
// that newer versions of PyTorch add and do not need (.format_version, .storage_alignment, .data/serialization_id) are left
// out: the first two would promise offsets that PyTorch computes by its own rule.
//
// # Reading
//
// Nothing that is read is executed: the index and the records' pickles go through package pickle, which builds inert data.
package dcp
