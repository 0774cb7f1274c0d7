// SPDX-License-Identifier: Apache-2.0

// Package convert writes the tensors of any checkpoint that package view reads as another format: DCP (PyTorch's distributed
// checkpoint), safetensors, or raw.
//
// Select says which tensors, under which names and dtypes; it is pure, so that the answer can be compared with what is wanted
// before anything is touched. Run streams them: memory is constant, whatever the size of tensors and files. Each shard that has
// a checksum is verified on the way, and the index of the new checkpoint is written last, after everything was.
//
// # Format raw
//
// A folder of files tensor-00000.bin, tensor-00001.bin, …, one for each tensor: its elements, row-major and little-endian, and
// nothing else. phalanx-raw.json says which is which (view.RawIndex), with the CRC-64/NVME of each file. A tensor without
// elements has an empty file.
package convert
