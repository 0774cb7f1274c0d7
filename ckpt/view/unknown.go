// SPDX-License-Identifier: Apache-2.0

package view

import (
	"bytes"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"phalanx/ckpt"
)

// UnknownError: there is something, and it is no checkpoint of a format that is read.
type UnknownError struct {
	Place string
	// Looks is what it looks like, "" when it looks like nothing that is known; after "; " comes what to do.
	Looks string
}

func (e *UnknownError) Error() string {
	if e.Looks == "" {
		return e.Place + " is no checkpoint of a known format"
	}
	looks, _, _ := strings.Cut(e.Looks, "; ")
	return fmt.Sprintf("%s looks like %s, which is not read", e.Place, looks)
}

// Unwrap makes it an ErrFormat.
func (e *UnknownError) Unwrap() error { return ckpt.ErrFormat }

// Hint says what to do instead.
func (e *UnknownError) Hint() string {
	if _, hint, ok := strings.Cut(e.Looks, "; "); ok {
		return hint
	}
	return "phalanx ckpt reads what jobs published, torch.distributed.checkpoint (DCP), safetensors and torch.save; convert others with the program that wrote them"
}

// folderMark is a name that tells what wrote a folder. Patterns are those of path.Match, over base names.
type folderMark struct{ pattern, looks string }

var folderMarks = []folderMark{
	{"_CHECKPOINT_METADATA", "a checkpoint of Orbax (JAX)"},
	{"manifest.ocdbt", "a checkpoint of Orbax (JAX)"},
	{"commit_success.txt", "a checkpoint of Orbax (JAX)"},
	{".zarray", "arrays of zarr, as Orbax and Megatron write them"},
	{"zero_to_fp32.py", "a checkpoint of DeepSpeed"},
	{"*_optim_states.pt", "a checkpoint of DeepSpeed"},
	{"mp_rank_*_model_states.pt", "a checkpoint of DeepSpeed"},
	{"latest_checkpointed_iteration.txt", "a checkpoint of Megatron"},
	{"model_optim_rng.pt", "a checkpoint of Megatron"},
	{"common.pt", "a checkpoint of Megatron"},
	{"metadata.pkl", "a checkpoint of torch_checkpointing"},
	{"*.data-00000-of-*", "a checkpoint of TensorFlow"},
	{"*.gguf", "a model of llama.cpp (GGUF)"},
	{"*.distcp", "a DCP checkpoint without its .metadata, so one that was not finished or not copied whole"},
	{"pytorch_model*.bin", "a folder with files of torch.save; name one of the files"},
	{"*.pt", "a folder with files of torch.save; name one of the files"},
	{"*.pth", "a folder with files of torch.save; name one of the files"},
}

// folderLooks says what a folder looks like.
func folderLooks(list []ckpt.Info) string {
	below := map[string]bool{}
	for _, i := range list {
		folder, name := path.Split(i.Key)
		if folder != "" && (name == ckpt.MetadataName || name == RawIndexName || strings.HasSuffix(name, ".safetensors")) || strings.Contains(i.Key, "/commits/") {
			below[strings.Split(folder, "/")[0]] = true
		}
	}
	if len(below) > 0 {
		return fmt.Sprintf("a folder with checkpoints in %d folders below it; name one of them, such as %s", len(below), slices.Min(slices.Collect(maps.Keys(below))))
	}
	for _, m := range folderMarks {
		for _, i := range list {
			if ok, _ := path.Match(m.pattern, path.Base(i.Key)); ok {
				return m.looks
			}
		}
	}
	return ""
}

// fileLooks says what a file looks like by its first bytes.
func fileLooks(head []byte) string {
	for _, m := range []struct{ magic, looks string }{
		{"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19.", "a file of torch.save in its format before PyTorch 1.6"},
		{"\x89HDF\r\n\x1a\n", "a file of HDF5 (Keras)"},
		{"GGUF", "a model of llama.cpp (GGUF)"},
		{"\x93NUMPY", "an array of NumPy"},
		{"\x1f\x8b", "a file compressed by gzip; decompress it first"},
		{"\x28\xb5\x2f\xfd", "a file compressed by zstd; decompress it first"},
		{"version https://git-lfs", "a pointer of Git LFS; fetch the file itself with git lfs pull"},
		{"version https://", "a pointer of Git LFS; fetch the file itself with git lfs pull"},
	} {
		if bytes.HasPrefix(head, []byte(m.magic)) || len(head) == 16 && len(m.magic) > 16 && bytes.HasPrefix([]byte(m.magic), head) {
			return m.looks
		}
	}
	if len(head) > 2 && head[0] == 0x80 && head[1] <= 5 {
		return "a bare pickle; a pickle is a program, which is not run: save the tensors with torch.save or safetensors"
	}
	return ""
}
