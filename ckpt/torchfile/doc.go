// SPDX-License-Identifier: Apache-2.0

// Package torchfile reads what torch.save writes, without executing any of it: the zip archives of PyTorch 1.6 and later.
//
// # File
//
// The archive has one folder with the members data.pkl, a pickle that describes the saved value, data/KEY, the bytes of the
// storage KEY, byteorder ("little" or "big", little when missing), and some that say nothing about the content. All are
// stored, never compressed. A tensor in the pickle is a view of a storage: first element, shape and strides, so tensors can
// share a storage, overlap and repeat elements, and can have a bit that says that stored elements are still to be conjugated or
// negated.
//
// Open reads the directory of the archive and the pickle, no storage. The pickle is read as data (package ckpt/pickle): tensors
// become Tensors, everything else Objects, which are values or names of what Python would have called. File.Locate says where a
// tensor's storage lies; package view reads it, and gives elements in row-major order, little-endian.
//
// # Names
//
// Nested values get names as in torch.distributed.checkpoint: the keys and places that lead to them, joined by dots. Dicts are
// entered always, lists only if they hold a tensor, a dict or such a list; other lists are one object. Unlike there, tuples
// are entered like lists: in a DCP checkpoint a tensor in a tuple is a part of an object, here it is a tensor. Two values that
// would get the same name are an error. A dict with a key that is no string, number, bool or None is one object. A value that
// is not in a container is called RootTensor or RootObject.
//
// # What is checked
//
// The CRC-32 of the pickle before it is used, that of a storage (Tensor.CRC32) by who reads it. No member is compressed or encrypted,
// all lie inside the file, and together they have no more bytes than the file has, so a small file cannot stand for a large
// one. Storages that were located do not overlap. Every element of a tensor lies in its storage, and all tensors written out have at most 64 times the file's bytes
// (or 1 GiB). Memory follows the pickle's
// size, within the limits of package pickle.
//
// Legacy files (before 1.6), TorchScript archives and others that look similar are refused with what they are (ErrUnsupported).
package torchfile
