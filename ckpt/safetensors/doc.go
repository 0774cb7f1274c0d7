// SPDX-License-Identifier: Apache-2.0

// Package safetensors reads and writes safetensors files: one file, the sharded folders of Hugging Face, and the folders of
// boxes that PyTorch's distributed checkpoint writes in this format (its HuggingFaceStorageWriter).
//
// # File
//
//	offset 0     N, the length of the header: 8 bytes, little-endian, at most 100 000 000
//	offset 8     header: one JSON object, which begins with "{" and may be followed by white space
//	offset 8+N   buffer: the bytes of the tensors, little-endian, row-major, one after the other without holes, to the end
//
// The header maps the name of each tensor to {"dtype", "shape", "data_offsets": [from, to]}, with offsets from the begin of
// the buffer, and "__metadata__" to an object of strings. Read checks all of it before it returns: names are unique (also
// where a JSON reader would let the last one win), shape and element type give the length, the tensors cover the buffer once
// and leave nothing over. More than 262,144 tensors in a file are refused (ErrTooMany): entries may be short, and each costs its
// reader many times its bytes. The error says at which byte of the file what was expected and what is there.
//
// Element types are named as in package phalanx. F4, F6_E2M3 and F6_E3M2 have elements smaller than a byte; no dtype of
// phalanx is like that, so such a tensor is listed with its size and an empty DType, and Tensor.Readable says why it cannot be
// read. c128 has no name in the format and cannot be written.
//
// # Writing
//
// Layout places tensors, File.Head encodes what goes before them, File.WriteTo writes it all. What is written depends on the
// tensors and the metadata alone. The header is padded with spaces so that the buffer begins at a multiple of 64. In the
// buffer come first, by name, the tensors whose length is a multiple of 64, then the others, by falling element size and then
// by name: as the format allows no holes, this gives every tensor of the first kind an address that is a multiple of 64, and
// all others one that is a multiple of their element size.
//
// # Folders
//
// OpenFolder takes, in this order: the files that model.safetensors.index.json names (a sharded model), or all *.safetensors
// files of a folder. Where a file's __metadata__ has DCP_SHARDING_INFO its tensors are boxes of larger ones: {"NAME":
// {"saved_offsets": [first index in each dimension]}}. The format does not tell the size of the whole: it is what the boxes
// reach, in every dimension, and they must cover it once. So a missing box at the far end of the outermost dimension cannot be
// noticed; one inside is.
//
// PyTorch's own reader of these folders reads all *.safetensors files and ignores the index. It does not know every type, and
// its consolidation of boxes into whole tensors even fewer: see ReadByPyTorch and ConsolidatedByPyTorch. The order in which a
// writer puts files: tensors first, index last (see IndexName).
//
// # Tied tensors
//
// The format knows no sharing: each tensor has bytes of its own. Tied finds tensors that are one (same content by digest, or
// declared so by the caller; same type and shape). A writer that chooses to use it writes the first of them by name and puts
// the others into __metadata__ as "NAME": "NAME OF THE ONE THAT IS WRITTEN", which is what the Python package's save_model
// does. File.Aliases gives them back. Both are explicit: nothing is left out or added unless the caller asks, because the
// Python package's load_file does not restore them, and tensors can have equal content without being tied (zeros).
package safetensors
