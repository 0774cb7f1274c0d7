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

// ReadByPyTorch reports whether all readers of PyTorch know a dtype. Its consolidation of boxes (consolidate_safetensors_files,
// and the readers up to 2.14 or so) takes a type that it does not know for float32.
func ReadByPyTorch(dtype string) bool {
	return slices.Contains([]string{"f16", "f32", "f64", "bf16", "i8", "i16", "i32", "i64", "u8"}, dtype)
}
