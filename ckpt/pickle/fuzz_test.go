// SPDX-License-Identifier: Apache-2.0

package pickle

import (
	"bytes"
	"runtime"
	"testing"
)

// FuzzDecode: whatever the bytes are, reading them ends in values within the limits or in an error, and what can be written
// is written again as what it was.
func FuzzDecode(f *testing.F) {
	for _, dtype := range []string{"f32", "f8_e4m3fn"} {
		b, err := EncodeTensor(dtype, []int{2, 300, 70000})
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b, true)
	}
	negative, err := EncodeTensor("f32", []int{2})
	if err != nil {
		f.Fatal(err)
	}
	end := bytes.LastIndexByte(negative, 't')
	f.Add(append(append(bytes.Clone(negative[:end]), "}X\x03\x00\x00\x00neg\x88s"...), negative[end:]...), true)
	for _, s := range seeds {
		f.Add([]byte(s), false)
	}
	f.Fuzz(func(t *testing.T, data []byte, lenient bool) {
		limits := Limits{Memory: 1 << 20, Depth: 50}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		d, err := Decode(data, Policy{KnownIn: TensorGlobal, Foreign: lenient, PersistentIDs: lenient}, limits)
		runtime.ReadMemStats(&after)
		if used := after.TotalAlloc - before.TotalAlloc; used > 4*uint64(limits.Memory)+200*uint64(len(data)) {
			t.Fatalf("%d bytes took %d bytes of memory", len(data), used)
		}
		if err != nil {
			if d != nil {
				t.Fatal("values and an error")
			}
			return
		}
		if d.Length > int64(len(data)) || !lenient && len(d.Foreign) > 0 {
			t.Fatalf("%d bytes of %d, foreign %v", d.Length, len(data), d.Foreign)
		}
		if IsTensor(d.Value) {
			if tensor, err := AsTensor(d.Value); err == nil && tensor.StorageBytes < 1<<20 && tensor.Bytes() < 1<<20 && tensor.DType != "" {
				elements := make([]byte, tensor.Bytes())
				if err := tensor.PutOff.Apply(tensor.DType, elements); err != nil {
					t.Fatal(err)
				}
			}
		}
		first, err := Encode(d.Value)
		if err != nil {
			return // holds what is not written: large integers, persistent ids
		}
		again, err := Decode(first, Policy{KnownIn: TensorGlobal, Foreign: lenient}, Limits{Memory: 64 << 20, Depth: 50, Expansion: 1 << 30})
		if err != nil {
			t.Fatalf("what was written cannot be read: %v\n%q", err, first)
		}
		second, err := Encode(again.Value)
		if err != nil || !bytes.Equal(first, second) {
			t.Fatalf("written twice it differs (%v)\n%q\n%q", err, first, second)
		}
	})
}

var seeds = []string{
	"\x80\x04N.",
	"\x80\x04\x95\x0b\x00\x00\x00\x00\x00\x00\x00}\x94\x8c\x01a\x94K\x01s.",
	"(lp0\nI1\naL-5L\naF1.5\naS'a\\x41'\naVb\\u00e9\nag0\n.",
	"\x80\x02]q\x00(K\x01M\x00\x01J\xff\xff\xff\xff\x8a\x02\xff\x7fG?\xf0\x00\x00\x00\x00\x00\x00\x88\x89e.",
	"\x80\x04\x8f\x94(K\x01K\x02\x90.",
	"\x80\x04(K\x01K\x02\x91.",
	"\x80\x05\x96\x02\x00\x00\x00\x00\x00\x00\x00ab.",
	"\x80\x02ccollections\nOrderedDict\n)R(X\x01\x00\x00\x00aK\x01u.",
	"\x80\x02ctorch\nSize\n)\x81}b.",
	"c\xe5\nx\n.",
	"cos\nsystem\n(S'true'\ntR.",
}
