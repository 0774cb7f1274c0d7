// SPDX-License-Identifier: Apache-2.0

package safetensors

import (
	"fmt"
	"slices"

	"phalanx"
)

// dtypes are the element types of the format, as of safetensors 0.8, with their bits. Those without a dtype of package phalanx
// are smaller than a byte.
var dtypes = []struct {
	name, dtype string
	bits        int64
}{
	{"BOOL", "bool", 8},
	{"F4", "", 4}, {"F6_E2M3", "", 6}, {"F6_E3M2", "", 6},
	{"F8_E4M3", "f8_e4m3fn", 8}, {"F8_E5M2", "f8_e5m2", 8}, {"F8_E8M0", "f8_e8m0fnu", 8},
	{"F8_E4M3FNUZ", "f8_e4m3fnuz", 8}, {"F8_E5M2FNUZ", "f8_e5m2fnuz", 8},
	{"I8", "i8", 8}, {"U8", "u8", 8}, {"I16", "i16", 16}, {"U16", "u16", 16}, {"I32", "i32", 32}, {"U32", "u32", 32}, {"I64", "i64", 64}, {"U64", "u64", 64},
	{"F16", "f16", 16}, {"BF16", "bf16", 16}, {"F32", "f32", 32}, {"F64", "f64", 64}, {"C64", "c64", 64},
}

// DTypeName is the format's name of a dtype of package phalanx; ErrUnsupported when it has none.
func DTypeName(dtype string) (string, error) {
	for _, d := range dtypes {
		if d.dtype == dtype && dtype != "" {
			return d.name, nil
		}
	}
	if phalanx.DTypeSize(dtype) > 0 {
		return "", fmt.Errorf("%w: safetensors has no element type for %s; leave the tensor out, or store the checkpoint as dcp", ErrUnsupported, dtype)
	}
	return "", fmt.Errorf("%w: unknown dtype %.40q", ErrUnsupported, dtype)
}

// ReadByPyTorch reports whether torch.distributed.checkpoint reads tensors of a dtype from safetensors files (its
// HuggingFaceStorageReader, 2.11 to 2.15): all that the format has but F8_E8M0, which safetensors.torch.load_file does read.
func ReadByPyTorch(dtype string) bool {
	_, err := DTypeName(dtype)
	return err == nil && dtype != "f8_e8m0fnu"
}

// ConsolidatedByPyTorch reports whether PyTorch can put boxes of tensors of a dtype together in new files
// (consolidate_safetensors_files, 2.11 to 2.15). It can for floats only, and fails or writes other bytes for the rest. It also
// writes zeros for every scalar, of any dtype.
func ConsolidatedByPyTorch(dtype string) bool {
	return slices.Contains([]string{"f64", "f32", "f16", "bf16", "f8_e4m3fn", "f8_e5m2", "f8_e4m3fnuz", "f8_e5m2fnuz"}, dtype)
}
