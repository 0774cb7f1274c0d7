// SPDX-License-Identifier: Apache-2.0

package elem_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"math"
	"math/big"
	"os"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"phalanx"
	"phalanx/ckpt/elem"
)

// patterns are all elements of a dtype of 8 or 16 bits, and for f32 those that testdata/write.py takes.
func patterns(dtype string) []byte {
	var b []byte
	switch phalanx.DTypeSize(dtype) {
	case 1:
		for i := range 1 << 8 {
			b = append(b, byte(i))
		}
	case 2:
		for i := range 1 << 16 {
			b = binary.LittleEndian.AppendUint16(b, uint16(i))
		}
	default:
		for i := range uint32(1 << 16) {
			b = binary.LittleEndian.AppendUint32(b, i*0x10001)
		}
		for _, low := range []uint32{0x7fff, 0x8000, 0x8001} {
			for i := range uint32(1 << 16) {
				b = binary.LittleEndian.AppendUint32(b, i<<16|low)
			}
		}
		for _, low := range []uint32{0x0fff, 0x1000, 0x1001} {
			for i := range uint32(1 << 19) {
				b = binary.LittleEndian.AppendUint32(b, i<<13|low)
			}
		}
	}
	return b
}

func decode(t testing.TB, dtype string, b []byte) []float64 {
	t.Helper()
	x := make([]float64, len(b)/phalanx.DTypeSize(dtype)*elem.Values(dtype))
	if err := elem.Decode(x, dtype, b); err != nil {
		t.Fatal(err)
	}
	return x
}

func cast(t testing.TB, to, from string, b []byte) ([]byte, elem.Loss) {
	t.Helper()
	out := make([]byte, len(b)/phalanx.DTypeSize(from)*phalanx.DTypeSize(to))
	loss, err := elem.Cast(out, to, b, from)
	if err != nil {
		t.Fatal(err)
	}
	return out, loss
}

// TestAgainstPyTorch compares casts of all elements of 8 and 16 bits, and of two million of f32, with what PyTorch makes of them.
func TestAgainstPyTorch(t *testing.T) {
	content, err := os.ReadFile("testdata/torch.json")
	if err != nil {
		t.Fatal(err)
	}
	var sums map[string]string
	if err := json.Unmarshal(content, &sums); err != nil || len(sums) < 130 {
		t.Fatal(len(sums), err)
	}
	for pair, want := range sums {
		from, to, _ := strings.Cut(pair, " ")
		got, _ := cast(t, to, from, patterns(from))
		size := phalanx.DTypeSize(to) / elem.Values(to)
		if strings.ContainsAny(to[:1], "fbc") {
			for i, x := range decode(t, to, got) {
				if math.IsNaN(x) {
					copy(got[i*size:][:size], bytes.Repeat([]byte{0xff}, size))
				}
			}
		}
		if sum := sha256.Sum256(got); hex.EncodeToString(sum[:]) != want {
			t.Errorf("%s: other elements than PyTorch's", pair)
		}
	}
}

// TestThereAndBack: every element of a narrow dtype is the same after a way through a wider one.
func TestThereAndBack(t *testing.T) {
	for from, through := range map[string][]string{
		"f16": {"f32", "f64", "c64"}, "bf16": {"f32", "f64", "c128"}, "f8_e4m3fn": {"f16", "bf16", "f32"}, "f8_e5m2": {"f16", "bf16", "f64"},
		"f8_e4m3fnuz": {"f16", "bf16"}, "f8_e5m2fnuz": {"f32", "bf16"}, "f8_e8m0fnu": {"f32", "bf16"}, "i8": {"i16", "i32", "i64"}, "u16": {"i32", "u64"},
	} {
		for _, to := range through {
			b := patterns(from)
			wide, loss := cast(t, to, from, b)
			if loss.Beyond != 0 {
				t.Errorf("%s to %s: %d lost", from, to, loss.Beyond)
			}
			if elem.Values(to) == 2 {
				to, wide = strings.Replace(strings.Replace(to, "c64", "f32", 1), "c128", "f64", 1), real(wide, phalanx.DTypeSize(to))
			}
			if elem.CanCast(to, from) != nil {
				t.Fatal(elem.CanCast(to, from))
			}
			back, _ := cast(t, from, to, wide)
			x := decode(t, from, b)
			for i := range x {
				size := phalanx.DTypeSize(from)
				if !math.IsNaN(x[i]) && !bytes.Equal(back[i*size:][:size], b[i*size:][:size]) {
					t.Fatalf("%s through %s: element %d is %x, was %x", from, to, i, back[i*size:][:size], b[i*size:][:size])
				}
			}
		}
	}
}

// real takes the first parts of complex elements.
func real(b []byte, size int) (parts []byte) {
	for i := 0; i < len(b); i += size {
		parts = append(parts, b[i:i+size/2]...)
	}
	return parts
}

// TestRoundsOnce: from 64 bits, a cast gives the nearest of the two neighbours, the even one of two equally near.
func TestRoundsOnce(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		from := rapid.SampledFrom([]string{"f64", "i64", "u64"}).Draw(rt, "from")
		to := rapid.SampledFrom([]string{"f16", "bf16", "f8_e4m3fn", "f8_e5m2", "f8_e4m3fnuz", "f8_e5m2fnuz", "f32"}).Draw(rt, "to")
		var u uint64
		exact := new(big.Float).SetPrec(200)
		switch from {
		case "f64":
			x := math.Ldexp(rapid.Float64Range(-2, 2).Draw(rt, "x"), rapid.IntRange(-30, 20).Draw(rt, "exponent"))
			u = math.Float64bits(x)
			if u<<1 > 1<<54 && rapid.Bool().Draw(rt, "short") { // near the halves
				u = u&^(1<<44-1) + uint64(rapid.IntRange(-1, 1).Draw(rt, "beside"))
			}
			exact.SetFloat64(math.Float64frombits(u))
		case "i64":
			v := rapid.Int64().Draw(rt, "x") >> rapid.IntRange(0, 63).Draw(rt, "shift")
			u = uint64(v)
			exact.SetInt64(v)
		case "u64":
			u = rapid.Uint64().Draw(rt, "x") >> rapid.IntRange(0, 63).Draw(rt, "shift")
			exact.SetUint64(u)
		}
		got, loss := cast(t, to, from, binary.LittleEndian.AppendUint64(nil, u))
		if loss.Beyond > 0 {
			return
		}
		x := decode(t, to, got)[0]
		far := distance(exact, x)
		p := pattern(got)
		for _, q := range []uint64{p - 1, p + 1} {
			if y := decode(t, to, bytesOf(q, len(got)))[0]; !math.IsNaN(y) && !math.IsInf(y, 0) {
				if d := distance(exact, y).Cmp(far); d < 0 || d == 0 && p&1 == 1 && x != y {
					rt.Fatalf("%s %v to %s is %v, not %v", from, exact, to, x, y)
				}
			}
		}
	})
}

func pattern(b []byte) uint64 {
	return binary.LittleEndian.Uint64(append(slices.Clone(b), make([]byte, 8-len(b))...))
}

func bytesOf(p uint64, size int) []byte { return binary.LittleEndian.AppendUint64(nil, p)[:size] }

func distance(a *big.Float, x float64) *big.Float {
	d := new(big.Float).SetPrec(200).Sub(a, new(big.Float).SetFloat64(x))
	return d.Abs(d)
}

func TestLossIsCounted(t *testing.T) {
	f32 := func(x ...float32) (b []byte) {
		for _, v := range x {
			b = binary.LittleEndian.AppendUint32(b, math.Float32bits(v))
		}
		return b
	}
	inf, nan := float32(math.Inf(1)), float32(math.NaN())
	for _, c := range []struct {
		from, to string
		src      []byte
		lost     int64
		want     []byte
	}{
		{"f32", "f16", f32(65504, 65519, 65520, -70000, inf, nan), 2, []byte{0xff, 0x7b, 0xff, 0x7b, 0, 0x7c, 0, 0xfc, 0, 0x7c, 0, 0x7e}},
		{"f32", "f8_e4m3fn", f32(448, 464, 465, inf, float32(math.Copysign(0, -1))), 1, []byte{0x7e, 0x7e, 0x7f, 0x7f, 0x80}},
		{"f32", "f8_e8m0fnu", f32(0, -2, 1, 3, 2.9, math.MaxFloat32, inf), 3, []byte{0, 128, 127, 129, 128, 255, 255}},
		{"i16", "i8", []byte{0x7f, 0, 0x80, 0, 0x80, 0xff, 0x7f, 0xff}, 2, []byte{0x7f, 0x7f, 0x80, 0x80}},
		{"i8", "u64", []byte{1, 0xff}, 1, []byte{1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}},
		{"u64", "i64", bytes.Repeat([]byte{0xff}, 8), 1, []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f}},
		{"i64", "i32", []byte{0, 0, 0, 0, 0, 0, 0, 0x80}, 1, []byte{0, 0, 0, 0x80}},
		{"bool", "i32", []byte{0, 1, 2}, 0, []byte{0, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0}},
		{"bool", "f16", []byte{0, 1, 2}, 0, []byte{0, 0, 0, 0x3c, 0, 0x3c}},
		{"f32", "f32", f32(nan), 0, f32(nan)},
		{"f32", "c64", f32(1), 0, f32(1, 0)},
		{"c128", "c64", append(binary.LittleEndian.AppendUint64(nil, math.Float64bits(1e300)), make([]byte, 8)...), 1, f32(inf, 0)},
	} {
		got, loss := cast(t, c.to, c.from, c.src)
		if !bytes.Equal(got, c.want) || loss.Beyond != c.lost {
			t.Errorf("%s to %s of %x is %x, %d lost, want %x, %d", c.from, c.to, c.src, got, loss.Beyond, c.want, c.lost)
		}
	}
}

func TestCastsRefused(t *testing.T) {
	for _, pair := range [][2]string{{"c64", "f32"}, {"f32", "i32"}, {"f8_e8m0fnu", "u8"}, {"i8", "bool"}, {"f32", "f33"}, {"", "f32"}} {
		if _, err := elem.Cast(nil, pair[1], nil, pair[0]); !errors.Is(err, elem.ErrCast) {
			t.Errorf("%q: %v", pair, err)
		}
	}
	for _, sizes := range [][2]int{{4, 4}, {2, 3}, {0, 4}} {
		if _, err := elem.Cast(make([]byte, sizes[0]), "f16", make([]byte, sizes[1]), "f32"); err == nil {
			t.Errorf("%v: no error", sizes)
		}
	}
	if elem.Decode(nil, "f99", nil) == nil || elem.Decode(make([]float64, 1), "c64", make([]byte, 8)) == nil || new(elem.Stats).Add("f32", make([]byte, 3)) == nil {
		t.Error("sizes that do not fit are taken")
	}
}

// TestEveryPair: what can be cast is cast, for any number of elements.
func TestEveryPair(t *testing.T) {
	for _, from := range phalanx.DTypes() {
		for _, to := range phalanx.DTypes() {
			if elem.CanCast(from, to) != nil {
				continue
			}
			for _, n := range []int{0, 1, 1023, 1024, 2500} {
				src, _ := cast(t, from, "bool", bytes.Repeat([]byte{1}, n))
				got, loss := cast(t, to, from, src)
				want, _ := cast(t, to, "bool", bytes.Repeat([]byte{1}, n))
				if !bytes.Equal(got, want) || loss.Beyond != 0 {
					t.Fatalf("%s to %s: %d ones are others, %d lost", from, to, n, loss.Beyond)
				}
			}
		}
	}
}

func TestStats(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		x := rapid.SliceOfN(rapid.OneOf(rapid.Float64Range(-1e6, 1e6), rapid.SampledFrom([]float64{0, math.Copysign(0, -1), math.NaN(), math.Inf(1), math.Inf(-1)})), 0, 3000).Draw(rt, "x")
		var b []byte
		var want elem.Stats
		sum, finite := new(big.Float).SetPrec(2000), 0
		want.Min, want.Max = math.Inf(1), math.Inf(-1)
		for _, v := range x {
			b = binary.LittleEndian.AppendUint64(b, math.Float64bits(v))
			want.Count++
			switch {
			case math.IsNaN(v):
				want.NaN++
				continue
			case math.IsInf(v, 0):
				want.Inf++
				continue
			case v == 0:
				want.Zero++
			}
			finite++
			want.Min, want.Max = min(want.Min, v), max(want.Max, v)
			sum.Add(sum, new(big.Float).SetFloat64(v))
		}
		cut := 8 * rapid.IntRange(0, len(x)).Draw(rt, "cut")
		var one, first, second elem.Stats
		for s, p := range map[*elem.Stats][]byte{&one: b, &first: b[:cut], &second: b[cut:]} {
			if err := s.Add("f64", p); err != nil {
				rt.Fatal(err)
			}
		}
		first.Merge(second)
		for _, got := range []elem.Stats{one, first} {
			if got.Count != want.Count || got.NaN != want.NaN || got.Inf != want.Inf || got.Zero != want.Zero || got.Finite() != int64(finite) {
				rt.Fatalf("%+v, want %+v", got, want)
			}
			if finite == 0 {
				if !math.IsNaN(got.Mean()) {
					rt.Fatalf("mean of nothing is %v", got.Mean())
				}
				continue
			}
			exact, _ := new(big.Float).Quo(sum, big.NewFloat(float64(finite))).Float64()
			if got.Min != want.Min || got.Max != want.Max || math.Abs(got.Mean()-exact) > 1e-9*math.Abs(exact)+1e-12 {
				rt.Fatalf("%v %v %v, want %v %v %v", got.Min, got.Max, got.Mean(), want.Min, want.Max, exact)
			}
		}
	})
	var s elem.Stats
	if err := s.Add("c64", []byte{0, 0, 0x80, 0x3f, 0, 0, 0, 0xc0}); err != nil || s.Count != 2 || s.Min != -2 || s.Max != 1 {
		t.Errorf("%+v, %v", s, err)
	}
	s = elem.Stats{}
	if err := s.Add("f8_e4m3fnuz", []byte{0x80, 0x7f, 0xff, 0}); err != nil || s.NaN != 1 || s.Max != 240 || s.Min != -240 || s.Zero != 1 || s.Mean() != 0 {
		t.Errorf("%+v, %v", s, err)
	}
}

// TestStatsOfIntegers: the least and largest of integers are exact, in whatever parts they are counted.
func TestStatsOfIntegers(t *testing.T) {
	wide := func(values ...uint64) (b []byte) {
		for _, v := range values {
			b = binary.LittleEndian.AppendUint64(b, v)
		}
		return b
	}
	for _, c := range []struct {
		dtype       string
		parts       [][]byte
		least, most string
	}{
		{"i64", [][]byte{wide(math.MaxInt64, math.MaxInt64-1)}, "9223372036854775806", "9223372036854775807"},
		{"i64", [][]byte{wide(1<<63, 0), wide(3)}, "-9223372036854775808", "3"},
		{"i64", [][]byte{wide(5), {}, wide(7), wide(1<<53 + 1)}, "5", "9007199254740993"},
		{"u64", [][]byte{wide(math.MaxUint64), wide(math.MaxUint64 - 1)}, "18446744073709551614", "18446744073709551615"},
		{"i32", [][]byte{{0, 0, 0, 0x80}, {0xff, 0xff, 0xff, 0x7f}}, "-2147483648", "2147483647"},
		{"u8", [][]byte{{}}, "", ""},
	} {
		var one, merged elem.Stats
		for _, p := range c.parts {
			var part elem.Stats
			if err := errors.Join(one.Add(c.dtype, p), part.Add(c.dtype, p)); err != nil {
				t.Fatal(err)
			}
			merged.Merge(part)
		}
		for _, s := range []elem.Stats{one, merged} {
			if s.MinText() != c.least || s.MaxText() != c.most || s.Integers() != (c.dtype[1:] == "64") {
				t.Errorf("%s %x: %s to %s, want %s to %s", c.dtype, c.parts, s.MinText(), s.MaxText(), c.least, c.most)
			}
		}
	}
	var s elem.Stats
	if err := errors.Join(s.Add("i64", wide(1<<62)), s.Add("f64", wide(math.Float64bits(0.5)))); err != nil || s.MinText() != "0.5" || s.MaxText() != "4611686018427388000" {
		t.Errorf("%s to %s, %v", s.MinText(), s.MaxText(), err)
	}
}

func BenchmarkCast(b *testing.B) {
	src := make([]byte, 1<<20)
	for _, pair := range [][2]string{{"f32", "bf16"}, {"f32", "f8_e4m3fn"}, {"bf16", "f32"}} {
		b.Run(pair[0]+"-"+pair[1], func(b *testing.B) {
			for i := range src {
				src[i] = byte(i * 7)
			}
			dst := make([]byte, len(src)/phalanx.DTypeSize(pair[0])*phalanx.DTypeSize(pair[1]))
			b.SetBytes(int64(len(src)))
			for b.Loop() {
				if _, err := elem.Cast(dst, pair[1], src, pair[0]); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkStats(b *testing.B) {
	src := make([]byte, 1<<20)
	for _, dtype := range []string{"f32", "bf16", "f16", "f8_e4m3fn"} {
		b.Run(dtype, func(b *testing.B) {
			b.SetBytes(int64(len(src)))
			for b.Loop() {
				var s elem.Stats
				if err := s.Add(dtype, src); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
