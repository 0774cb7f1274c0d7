// SPDX-License-Identifier: Apache-2.0

package pickle

import (
	"encoding/binary"
	"fmt"

	"phalanx"
)

// PutOff is what PyTorch has still to do to the stored elements to make them those of the tensor. It conjugates and negates
// by setting a bit of the tensor, which shares its storage with the tensor that it was made of, and saves the bit.
type PutOff struct{ Conjugate, Negate bool }

// None reports whether the stored elements are those of the tensor.
func (p PutOff) None() bool { return p == PutOff{} }

// possible reports whether Apply knows how. Only complex numbers have a conjugate, and not every type has negatives.
func (p PutOff) possible(dtype string) bool {
	switch dtype {
	case "c64", "c128":
		return true
	case "f64", "f32", "f16", "bf16", "i64", "i32", "i16", "i8", "u64", "u32", "u16", "u8":
		return !p.Conjugate
	}
	return p.None()
}

// Apply does what was put off to whole little-endian elements, in place. Integers that have no negative wrap around, as in
// PyTorch.
func (p PutOff) Apply(dtype string, b []byte) error {
	size := phalanx.DTypeSize(dtype)
	if !p.possible(dtype) || size == 0 || len(b)%size != 0 {
		return fmt.Errorf("pickle: %d bytes of %q cannot be conjugated or negated", len(b), dtype)
	}
	if p.None() {
		return nil
	}
	real, imaginary := p.Negate, p.Negate != p.Conjugate
	switch dtype {
	case "c64", "c128":
		flip(b, size, size/2, real)
		flip(b, size, size, imaginary)
	case "f64", "f32", "f16", "bf16":
		flip(b, size, size, real)
	default:
		negate(b, size, real)
	}
	return nil
}

// flip turns the sign that the byte before end of each element begins with.
func flip(b []byte, size, end int, turn bool) {
	if !turn {
		return
	}
	for at := end - 1; at < len(b); at += size {
		b[at] ^= 0x80
	}
}

// negate makes integers their negatives, in two's complement.
func negate(b []byte, size int, turn bool) {
	if !turn {
		return
	}
	for ; len(b) >= size; b = b[size:] {
		switch size {
		case 8:
			binary.LittleEndian.PutUint64(b, -binary.LittleEndian.Uint64(b))
		case 4:
			binary.LittleEndian.PutUint32(b, -binary.LittleEndian.Uint32(b))
		case 2:
			binary.LittleEndian.PutUint16(b, -binary.LittleEndian.Uint16(b))
		case 1:
			b[0] = -b[0]
		}
	}
}

// putOff reads the properties that PyTorch saves beside a tensor: a dict of names to bools. With one that is not known the
// elements would be read as others, so such a tensor has no DType: it is listed, and cannot be read.
func (t *Tensor) putOff(v any) error {
	if v == nil {
		return nil
	}
	d, ok := v.(*Dict)
	if !ok {
		return fmt.Errorf("the properties of a tensor are %s", Describe(v))
	}
	unknown := ""
	for _, p := range d.Pairs { // of two equal keys the last one counts
		name, isText := p.Key.(string)
		on, isBool := p.Value.(bool)
		switch {
		case isText && isBool && name == "conj":
			t.PutOff.Conjugate = on
		case isText && isBool && name == "neg":
			t.PutOff.Negate = on
		case isText:
			unknown = name
		default:
			unknown = Describe(p.Key)
		}
	}
	if unknown == "" && !t.PutOff.possible(t.DType) && t.DType != "" {
		unknown = "conj or neg"
	}
	if unknown != "" {
		t.DTypeName, t.DType = fmt.Sprintf("%s with the property %.40q", t.DTypeName, unknown), ""
	}
	return nil
}
