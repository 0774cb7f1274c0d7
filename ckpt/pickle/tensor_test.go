// SPDX-License-Identifier: Apache-2.0

package pickle_test

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"phalanx"
	"phalanx/ckpt/pickle"
)

// TestDTypes: every dtype that can be stored has a name in PyTorch and comes back from it.
func TestDTypes(t *testing.T) {
	for _, dtype := range phalanx.DTypes() {
		name := pickle.TorchName(dtype)
		if name == "" || pickle.DType(name) != dtype || !pickle.TensorGlobal("torch", name) {
			t.Errorf("%s is %q", dtype, name)
		}
		b, err := pickle.EncodeTensor(dtype, []int{2, 3})
		if err != nil {
			t.Fatal(err)
		}
		tensor := decodeTensor(t, b)
		if tensor.DType != dtype || tensor.DTypeName != name || !slices.Equal(tensor.Shape, []int{2, 3}) || !slices.Equal(tensor.Strides, []int{3, 1}) ||
			tensor.StorageBytes != int64(6*phalanx.DTypeSize(dtype)) || tensor.Storage != "0" {
			t.Errorf("%s: %+v", dtype, tensor)
		}
	}
	if pickle.TorchName("float32") != "" || pickle.DType("f32") != "" || pickle.DType("") != "" || pickle.TensorGlobal("torch", "") {
		t.Error("unknown dtypes are known")
	}
	if _, err := pickle.EncodeTensor("f31", nil); err == nil {
		t.Error("f31 is written")
	}
}

func decodeTensor(t testing.TB, b []byte) *pickle.Tensor {
	t.Helper()
	doc, err := pickle.Decode(b, pickle.Policy{KnownIn: pickle.TensorGlobal, PersistentIDs: true}, pickle.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	tensor, err := pickle.AsTensor(doc.Value)
	if err != nil {
		t.Fatal(err)
	}
	return tensor
}

func known(module, name string) *pickle.Global {
	return &pickle.Global{Module: module, Name: name, Known: true}
}

func call(g *pickle.Global, args ...any) *pickle.Object {
	return &pickle.Object{Class: g, Args: &pickle.Tuple{Items: args}}
}

func ints(n ...int64) *pickle.Tuple {
	t := &pickle.Tuple{}
	for _, v := range n {
		t.Items = append(t.Items, v)
	}
	return t
}

// storage is the persistent id of a storage of f32.
func storage(elements any) *pickle.PersistentID {
	return &pickle.PersistentID{ID: &pickle.Tuple{Items: []any{"storage", known("torch", "FloatStorage"), "7", "cuda:0", elements}}}
}

// TestAsTensor: the ways in which PyTorch describes a tensor, and what is refused.
func TestAsTensor(t *testing.T) {
	v2, v3 := known("torch._utils", "_rebuild_tensor_v2"), known("torch._utils", "_rebuild_tensor_v3")
	hooks := call(known("collections", "OrderedDict"))
	plain := call(v2, storage(int64(6)), int64(0), ints(2, 3), ints(1, 2), true, hooks)
	untyped := &pickle.PersistentID{ID: &pickle.Tuple{Items: []any{"storage", known("torch.storage", "UntypedStorage"), "0", "cpu", int64(8)}}}
	for _, c := range []struct {
		name  string
		v     any
		wants string // a part of the error, or of the tensor
	}{
		{"plain", plain, "{Storage:7 StorageBytes:24 DType:f32 DTypeName:float32 Shape:[2 3] Strides:[1 2] Offset:0 PutOff:{Conjugate:false Negate:false} RequiresGrad:true}"},
		{"with metadata", call(v2, append(slices.Clone(plain.Args.(*pickle.Tuple).Items), &pickle.Dict{})...), "DType:f32"},
		{"with no metadata", with(plain, nil), "DType:f32"},
		{"negative", with(plain, properties("neg", true)), "PutOff:{Conjugate:false Negate:true}"},
		{"not negative", with(plain, properties("neg", true, "neg", false)), "PutOff:{Conjugate:false Negate:false}"},
		{"a conjugate", with(call(v2, complexStorage, int64(0), ints(2), ints(1), true, hooks), properties("conj", true)), "DType:c64 DTypeName:complex64 Shape:[2] Strides:[1] Offset:0 PutOff:{Conjugate:true Negate:false}"},
		{"a conjugate of no complex numbers", with(plain, properties("conj", true)), `DType: DTypeName:float32 with the property "conj or neg" Shape`},
		{"with an unknown property", with(plain, properties("neg", true, "zero", true)), `DType: DTypeName:float32 with the property "zero" Shape`},
		{"with a property of another kind", with(plain, properties("neg", int64(1))), `DType: DTypeName:float32 with the property "neg" Shape`},
		{"with a property without a name", with(plain, properties(int64(1), true)), `DType: DTypeName:float32 with the property "an int" Shape`},
		{"with properties of text", with(plain, "neg"), "the properties of a tensor are the string"},
		{"with a dtype as properties", with(plain, known("torch", "float64")), "the properties of a tensor are the global torch.float64"},
		{"with one argument more", with(plain, nil, nil), "8 arguments, it has 6 to 7"},
		{"untyped and negative", call(v3, untyped, int64(1), ints(3), ints(1), false, hooks, known("torch", "uint16"), properties("neg", true)), "DType:u16 DTypeName:uint16 Shape:[3] Strides:[1] Offset:1 PutOff:{Conjugate:false Negate:true}"},
		{"untyped without negatives", call(v3, untyped, int64(1), ints(3), ints(1), false, hooks, known("torch", "float8_e4m3fnuz"), properties("neg", true)), `DTypeName:float8_e4m3fnuz with the property "conj or neg"`},
		{"untyped without a dtype", call(v3, untyped, int64(1), ints(3), ints(1), false, hooks, "bfloat16"), "the dtype of a tensor is the string"},
		{"of the first kind", call(known("torch._utils", "_rebuild_tensor"), storage(int64(6)), int64(5), ints(), ints()), "Offset:5"},
		{"a parameter", call(known("torch._utils", "_rebuild_parameter"), plain, true, hooks), "StorageBytes:24"},
		{"of a type of its own", call(known("torch._tensor", "_rebuild_from_type_v2"), v2, &pickle.Global{Module: "mine", Name: "T"}, plain.Args, &pickle.Dict{}), "StorageBytes:24"},
		{"untyped", call(v3, untyped, int64(1), ints(3), ints(1), false, hooks, known("torch", "bfloat16")), "DType:bf16 DTypeName:bfloat16 Shape:[3]"},
		{"of an unknown dtype", call(v3, untyped, int64(0), ints(3), ints(1), false, hooks, known("torch", "float4_e2m1fn_x2")), "DType: DTypeName:float4_e2m1fn_x2"},
		{"expanded", call(v2, storage(int64(1)), int64(0), ints(1000, 5), ints(0, 0), false, hooks), "Shape:[1000 5] Strides:[0 0]"},
		{"empty beyond its storage", call(v2, storage(int64(0)), int64(9), ints(0, 1<<40), ints(1<<40, 1), false, hooks), "Shape:[0 1099511627776]"},
		{"one more than there is", call(v2, storage(int64(5)), int64(0), ints(2, 3), ints(3, 1), false, hooks), "beyond its storage of 20 bytes"},
		{"untyped with one more", call(v3, untyped, int64(2), ints(3), ints(1), false, hooks, known("torch", "bfloat16")), "beyond its storage of 8 bytes"},
		{"begins behind", call(v2, storage(int64(6)), int64(6), ints(), ints(), false, hooks), "beyond its storage"},
		{"begins far behind", call(v2, storage(int64(6)), int64(math.MaxInt64), ints(2), ints(math.MaxInt64), false, hooks), "beyond its storage"},
		{"far strides", call(v2, storage(int64(6)), int64(0), ints(2, 2), ints(math.MaxInt64, math.MaxInt64), false, hooks), "beyond its storage"},
		{"begins before", call(v2, storage(int64(6)), int64(-1), ints(), ints(), false, hooks), "begins at"},
		{"negative strides", call(v2, storage(int64(6)), int64(5), ints(6), ints(-1), false, hooks), "strides [-1]"},
		{"a negative size", call(v2, storage(int64(6)), int64(0), ints(-6), ints(1), false, hooks), "shape [-6]"},
		{"too many elements", call(v2, storage(int64(6)), int64(0), ints(1<<32, 1<<32), ints(0, 0), false, hooks), "a tensor of shape"},
		{"more sizes than strides", call(v2, storage(int64(6)), int64(0), ints(2, 3), ints(1), false, hooks), "2 sizes and 1 strides"},
		{"a size of text", call(v2, storage(int64(6)), int64(0), &pickle.Tuple{Items: []any{"2"}}, ints(1), false, hooks), "the shape of a tensor"},
		{"no shape", call(v2, storage(int64(6)), int64(0), nil, ints(1), false, hooks), "None instead of a tuple"},
		{"few arguments", call(v2, storage(int64(6))), "1 arguments, it has 6"},
		{"no arguments", &pickle.Object{Class: v2, Args: int64(1)}, "is called with an int"},
		{"an empty wrapper", call(known("torch._utils", "_rebuild_parameter")), "0 arguments"},
		{"a wrapper of itself", wrapped(plain, 10), "wrapped too often"},
		{"no storage", call(v2, int64(1), int64(0), ints(), ints(), false, hooks), "an int instead of a storage"},
		{"another storage", call(v2, &pickle.PersistentID{ID: "x"}, int64(0), ints(), ints(), false, hooks), "unknown kind of storage"},
		{"a storage of text", call(v2, storage("6"), int64(0), ints(), ints(), false, hooks), "a storage that is described by"},
		{"a storage beyond numbers", call(v2, storage(int64(math.MaxInt64)), int64(0), ints(), ints(), false, hooks), "a storage that is described by"},
		{"quantized", call(v2, &pickle.PersistentID{ID: &pickle.Tuple{Items: []any{"storage", known("torch", "QInt8Storage"), "0", "cpu", int64(1)}}}, int64(0), ints(), ints(), false, hooks), "unknown class torch.QInt8Storage"},
		{"something else", call(known("torch", "Size"), ints(2)), "a torch.Size is no tensor"},
		{"unknown", call(&pickle.Global{Module: "torch._utils", Name: "_rebuild_tensor_v2"}, plain.Args.(*pickle.Tuple).Items...), "is no tensor"},
		{"None", nil, "None is no tensor"},
	} {
		tensor, err := pickle.AsTensor(c.v)
		got := fmt.Sprintf("%+v", tensor)
		if err != nil {
			got = err.Error()
		}
		if !strings.Contains(got, c.wants) || (tensor == nil) != (err != nil) {
			t.Errorf("%s: %s, want %q", c.name, got, c.wants)
		}
	}
}

var complexStorage = &pickle.PersistentID{ID: &pickle.Tuple{Items: []any{"storage", known("torch", "ComplexFloatStorage"), "0", "cpu", int64(2)}}}

// with is a call with more arguments.
func with(o *pickle.Object, more ...any) *pickle.Object {
	return &pickle.Object{Class: o.Class, Args: &pickle.Tuple{Items: append(slices.Clone(o.Args.(*pickle.Tuple).Items), more...)}}
}

func properties(keysAndValues ...any) *pickle.Dict {
	d := &pickle.Dict{}
	for i := 0; i < len(keysAndValues); i += 2 {
		d.Pairs = append(d.Pairs, pickle.Pair{Key: keysAndValues[i], Value: keysAndValues[i+1]})
	}
	return d
}

// TestPutOff: what PyTorch has put off is done to each number, and to no part of one.
func TestPutOff(t *testing.T) {
	for _, c := range []struct {
		do           pickle.PutOff
		dtype        string
		before, want string
	}{
		{pickle.PutOff{Negate: true}, "f32", "\x01\x02\x03\x04\x05\x06\x07\x88", "\x01\x02\x03\x84\x05\x06\x07\x08"},
		{pickle.PutOff{Negate: true}, "bf16", "\x01\x02\x03\x84", "\x01\x82\x03\x04"},
		{pickle.PutOff{Negate: true}, "i16", "\x01\x00\x00\x80", "\xff\xff\x00\x80"},
		{pickle.PutOff{Negate: true}, "u8", "\x00\x01\xff", "\x00\xff\x01"},
		{pickle.PutOff{Negate: true}, "i64", "\x02\x00\x00\x00\x00\x00\x00\x00", "\xfe\xff\xff\xff\xff\xff\xff\xff"},
		{pickle.PutOff{Conjugate: true}, "c64", "\x01\x02\x03\x04\x05\x06\x07\x08", "\x01\x02\x03\x04\x05\x06\x07\x88"},
		{pickle.PutOff{Negate: true}, "c64", "\x01\x02\x03\x04\x05\x06\x07\x08", "\x01\x02\x03\x84\x05\x06\x07\x88"},
		{pickle.PutOff{Conjugate: true, Negate: true}, "c64", "\x01\x02\x03\x04\x05\x06\x07\x08", "\x01\x02\x03\x84\x05\x06\x07\x08"},
		{pickle.PutOff{}, "f8_e4m3fnuz", "\x00", "\x00"},
	} {
		b := []byte(c.before)
		if err := c.do.Apply(c.dtype, b); err != nil || string(b) != c.want {
			t.Errorf("%+v of %s: %x, want %x, %v", c.do, c.dtype, b, c.want, err)
		}
	}
	for dtype, n := range map[string]int{"f8_e8m0fnu": 1, "bool": 1, "f32": 3, "f31": 4} {
		if (pickle.PutOff{Negate: true}).Apply(dtype, make([]byte, n)) == nil {
			t.Errorf("%d bytes of %s are negated", n, dtype)
		}
	}
}

func wrapped(v any, times int) any {
	for range times {
		v = call(known("torch._utils", "_rebuild_parameter"), v)
	}
	return v
}

// TestSwapBytes: each number is turned by itself, both halves of a complex one.
func TestSwapBytes(t *testing.T) {
	for dtype, want := range map[string]string{
		"u8": "abcdefghijklmnop", "bool": "abcdefghijklmnop", "bf16": "badcfehgjilknmpo", "f32": "dcbahgfelkjiponm", "c64": "dcbahgfelkjiponm",
		"f64": "hgfedcbaponmlkji", "c128": "hgfedcbaponmlkji",
	} {
		b := []byte("abcdefghijklmnop")
		if pickle.SwapBytes(dtype, b); string(b) != want {
			t.Errorf("%s: %s, want %s", dtype, b, want)
		}
	}
}
