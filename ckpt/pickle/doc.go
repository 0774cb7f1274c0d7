// SPDX-License-Identifier: Apache-2.0

// Package pickle reads and writes Python's pickles as data. A pickle is a program for a small stack machine, and Python runs
// whatever functions it names; here nothing is looked up, called or executed, whatever the bytes say.
//
// # Reading
//
// Decode runs the stack machine of protocols 0 to 5 and builds values: Python's None, bool, int, float, str and bytes as Go's
// nil, bool, int64 (or *big.Int), float64, string and Bytes; containers as *List, *Tuple, *Dict and *Set; a name of a class
// or function as *Global; what a class or function would have been called with as *Object. So
//
//	REDUCE of torch.Size over ((2, 3),)   is   &Object{Class: torch.Size, Args: ((2, 3),)}
//
// and it is the caller who knows what torch.Size means. A Policy lists the globals that the caller knows. Any other one is
// refused with its name and its place in the bytes (UnknownGlobalError), or, where the caller can go on without it, becomes
// an *Object that is only looked past (Policy.Foreign); those that would give a reader of Python control over the machine
// (Dangerous) are refused always. Opcodes that need what a file does not have are refused too: extension codes, buffers out
// of band, and persistent ids unless the caller knows them.
//
// # Bounds
//
// Values may be shared: a pickle names what it has built before by its number, so that a few bytes can stand for a structure
// that is larger than any memory when it is written out. Here it stays shared, and Limits bounds the bytes read, the memory
// of all values together, how deep they nest and how many values a reader would visit that visits shared ones again each
// time. Structures that contain themselves are refused, except inside objects of unknown classes. So a caller may walk what
// Decode returns, by recursion, without bounds of its own, as long as it does not go into such objects (Object.Known).
//
// # Writing
//
// Encode writes the same values in protocol 4, always the same bytes for the same values.
//
// # PyTorch
//
// AsTensor recognizes what torch.save writes for a tensor, EncodeTensor writes it. Elements with any strides are
// brought into row-major order by package view. PutOff is what PyTorch has still to do to them: to conjugate or negate them.
package pickle
