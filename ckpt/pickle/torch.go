// SPDX-License-Identifier: Apache-2.0

package pickle

import (
	"encoding/binary"
	"fmt"
	"slices"

	"phalanx"
)

// torchType says how torch.save names an element type: the dtype, and the class of a storage of it. Types that came after
// the classes have none; their tensors are rebuilt from an untyped storage and the dtype.
type torchType struct {
	dtype   string // of phalanx.DTypes
	name    string // an attribute of the module torch
	storage string // an attribute of the module torch, or ""
}

var torchTypes = []torchType{
	{"f64", "float64", "DoubleStorage"},
	{"f32", "float32", "FloatStorage"},
	{"f16", "float16", "HalfStorage"},
	{"bf16", "bfloat16", "BFloat16Storage"},
	{"f8_e4m3fn", "float8_e4m3fn", ""},
	{"f8_e5m2", "float8_e5m2", ""},
	{"f8_e4m3fnuz", "float8_e4m3fnuz", ""},
	{"f8_e5m2fnuz", "float8_e5m2fnuz", ""},
	{"f8_e8m0fnu", "float8_e8m0fnu", ""},
	{"c64", "complex64", "ComplexFloatStorage"},
	{"c128", "complex128", "ComplexDoubleStorage"},
	{"i64", "int64", "LongStorage"},
	{"i32", "int32", "IntStorage"},
	{"i16", "int16", "ShortStorage"},
	{"i8", "int8", "CharStorage"},
	{"u64", "uint64", ""},
	{"u32", "uint32", ""},
	{"u16", "uint16", ""},
	{"u8", "uint8", "ByteStorage"},
	{"bool", "bool", "BoolStorage"},
}

// DType returns the dtype (one of phalanx.DTypes) that PyTorch calls torch.NAME, "" when there is none.
func DType(torchName string) string {
	i := slices.IndexFunc(torchTypes, func(t torchType) bool { return t.name == torchName })
	if i < 0 {
		return ""
	}
	return torchTypes[i].dtype
}

// TorchName returns what PyTorch calls a dtype: float32 for f32. It is "" for what is not in phalanx.DTypes.
func TorchName(dtype string) string {
	i := slices.IndexFunc(torchTypes, func(t torchType) bool { return t.dtype == dtype })
	if i < 0 {
		return ""
	}
	return torchTypes[i].name
}

// EncodeTensor returns the pickle that torch.save writes for one contiguous tensor on the CPU whose elements are the whole
// of storage "0", byte for byte as PyTorch writes it: protocol 2, with the opcodes and the memo of Python's pickler. It
// fails for a dtype that is not in phalanx.DTypes.
func EncodeTensor(dtype string, shape []int) ([]byte, error) {
	i := slices.IndexFunc(torchTypes, func(t torchType) bool { return t.dtype == dtype })
	if i < 0 {
		return nil, fmt.Errorf("PyTorch has no dtype %q", dtype)
	}
	t := torchTypes[i]
	elements := 1
	strides := make([]int, len(shape))
	for d := len(shape) - 1; d >= 0; d-- {
		strides[d] = 1
		if d < len(shape)-1 {
			strides[d] = strides[d+1] * max(shape[d+1], 1)
		}
		elements *= shape[d]
	}
	rebuild, module, class := "_rebuild_tensor_v2", "torch", t.storage
	if class == "" { // an untyped storage counts bytes
		rebuild, module, class = "_rebuild_tensor_v3", "torch.storage", "UntypedStorage"
		elements *= phalanx.DTypeSize(dtype)
	}
	w := &protocol2{b: []byte("\x80\x02")}
	w.global("torch._utils", rebuild)
	w.raw("((")
	w.unicode("storage")
	w.global(module, class)
	w.unicode("0")
	w.unicode("cpu")
	w.integer(elements)
	w.memoized("t")
	w.raw("Q")
	w.integer(0)
	w.integers(shape)
	w.integers(strides)
	w.raw("\x89")
	w.global("collections", "OrderedDict")
	w.raw(")")
	w.memoized("R")
	if t.storage == "" {
		w.global("torch", t.name)
	}
	w.memoized("t")
	w.memoized("R")
	w.raw(".")
	return w.b, nil
}

// protocol2 writes opcodes of protocol 2, each new object put into the memo, as Python's pickler does.
type protocol2 struct {
	b    []byte
	memo int
}

func (w *protocol2) raw(ops string) { w.b = append(w.b, ops...) }

// memoized adds opcodes that leave a new object, and BINPUT. A tensor's pickle has few objects: their numbers fit in a byte.
func (w *protocol2) memoized(ops string) {
	w.b = append(append(w.b, ops...), 'q', byte(w.memo))
	w.memo++
}

func (w *protocol2) global(module, name string) { w.memoized("c" + module + "\n" + name + "\n") }

func (w *protocol2) unicode(s string) {
	w.b = binary.LittleEndian.AppendUint32(append(w.b, 'X'), uint32(len(s)))
	w.memoized(s)
}

func (w *protocol2) integer(n int) { w.b = appendInt(w.b, int64(n)) }

func (w *protocol2) integers(n []int) {
	if len(n) == 0 {
		w.raw(")")
		return
	}
	if len(n) > 3 {
		w.raw("(")
	}
	for _, v := range n {
		w.integer(v)
	}
	w.memoized(tupleOf(len(n)))
}

// tupleOf is the opcode that makes a tuple of n objects, n > 0; above three they follow a MARK.
func tupleOf(n int) string {
	switch n {
	case 1:
		return "\x85"
	case 2:
		return "\x86"
	case 3:
		return "\x87"
	}
	return "t"
}

// appendInt adds an integer as Python's pickler does from protocol 2 on.
func appendInt(b []byte, n int64) []byte {
	switch {
	case 0 <= n && n <= 0xff:
		return append(b, 'K', byte(n))
	case 0 <= n && n <= 0xffff:
		return binary.LittleEndian.AppendUint16(append(b, 'M'), uint16(n))
	case -1<<31 <= n && n < 1<<31:
		return binary.LittleEndian.AppendUint32(append(b, 'J'), uint32(n))
	}
	v := binary.LittleEndian.AppendUint64(nil, uint64(n))
	// As few bytes as keep the sign.
	for len(v) > 1 && (v[len(v)-1] == 0 && v[len(v)-2] < 0x80 || v[len(v)-1] == 0xff && v[len(v)-2] >= 0x80) {
		v = v[:len(v)-1]
	}
	return append(append(b, '\x8a', byte(len(v))), v...)
}
