// SPDX-License-Identifier: Apache-2.0

package pickle_test

import (
	"errors"
	"fmt"
	"math"
	"math/big"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"phalanx/ckpt/pickle"
)

// plain turns values into what %v prints legibly: containers as Go's, the rest as it is.
func plain(v any) any {
	all := func(items []any) []any {
		out := make([]any, len(items))
		for i, item := range items {
			out[i] = plain(item)
		}
		return out
	}
	switch v := v.(type) {
	case *pickle.Tuple:
		return fmt.Sprint("tuple", all(v.Items))
	case *pickle.List:
		return all(v.Items)
	case *pickle.Set:
		return fmt.Sprint("set", v.Frozen, all(v.Items))
	case *pickle.Object:
		return fmt.Sprint(v.Global(), plain(v.Args), plainPairs(v.Pairs))
	}
	return v
}

func plainPairs(pairs []pickle.Pair) (out []any) {
	for _, p := range pairs {
		out = append(out, plain(p.Key), plain(p.Value))
	}
	return out
}

// TestProtocols: what Python wrote by each protocol (testdata/write.py) is read as what it was.
func TestProtocols(t *testing.T) {
	power := func(sign, n, plus int64) *big.Int {
		v := new(big.Int).Lsh(big.NewInt(1), uint(n))
		return v.Mul(v, big.NewInt(sign)).Add(v, big.NewInt(plus))
	}
	want := map[string]any{
		"none": nil, "bools": []any{true, false},
		"ints": []any{int64(0), int64(1), int64(255), int64(256), int64(65535), int64(65536), int64(-1), int64(-128),
			int64(math.MaxInt32), int64(math.MinInt32), int64(1 << 31), int64(math.MaxInt64), int64(math.MinInt64)},
		"big":     []any{power(1, 63, 0), power(-1, 63, -1), power(1, 200, 0), power(-1, 200, 0)},
		"floats":  []any{0.0, math.Copysign(0, -1), 1.5, 1e-300, math.Inf(1), math.Inf(-1)},
		"strings": []any{"", "a", "ü€🙂", "line\nquote'\"\\ \\u0041", strings.Repeat("x", 300), strings.Repeat("y", 70000)},
		"bytes":   []any{pickle.Bytes(""), pickle.Bytes("\x00\xff"), pickle.Bytes(strings.Repeat("z", 300))},
		"tuples":  []any{"tuple[]", "tuple[1]", "tuple[1 2]", "tuple[1 2 3]", "tuple[1 2 3 4]"},
		"shared":  []any{[]any{"shared"}, []any{"shared"}},
		"ordered": "collections.OrderedDicttuple[][a 1 b 2]",
		"set":     "setfalse [1]", "frozenset": "settrue [2]", "array": pickle.Bytes("array"),
	}
	for protocol := range 6 {
		b, err := os.ReadFile(fmt.Sprintf("testdata/protocol%d.pickle", protocol))
		if err != nil {
			t.Fatal(err)
		}
		policy := pickle.Policy{Known: []pickle.Name{{Module: "collections", Name: "OrderedDict"}}}
		var unknown *pickle.UnknownGlobalError
		if _, err := pickle.Decode(b, policy, pickle.Limits{}); !errors.As(err, &unknown) || unknown.Module != "datetime" || unknown.Name != "date" || unknown.Offset == 0 || unknown.Dangerous {
			t.Errorf("protocol %d: %v", protocol, err)
		}
		policy.Foreign = true
		doc, err := pickle.Decode(append(b, "more"...), policy, pickle.Limits{})
		if err != nil {
			t.Fatalf("protocol %d: %v", protocol, err)
		}
		if doc.Length != int64(len(b)) || len(doc.Foreign) != 1 || doc.Foreign[0].String() != "datetime.date" || doc.Foreign[0].Offset != unknown.Offset {
			t.Errorf("protocol %d: %d bytes of %d, foreign %v", protocol, doc.Length, len(b), doc.Foreign)
		}
		d := doc.Value.(*pickle.Dict)
		for key, value := range want {
			got, ok := d.Get(key)
			if fmt.Sprint(plain(got)) != fmt.Sprint(value) || !ok || !reflect.DeepEqual(plain(got), value) && key != "ordered" {
				t.Errorf("protocol %d: %s is %.300v, want %.300v", protocol, key, plain(got), value)
			}
		}
		shared, _ := d.Get("shared")
		if items := shared.(*pickle.List).Items; items[0] != items[1] {
			t.Errorf("protocol %d: what was shared is not", protocol)
		}
		last := d.Pairs[len(d.Pairs)-1]
		if last.Key != any(int64(5)) || fmt.Sprint(plainPairs(last.Value.(*pickle.Dict).Pairs)) != "[tuple[1 key] by tuple]" || len(d.Pairs) != len(want)+2 {
			t.Errorf("protocol %d: the last of %d pairs is %v", protocol, len(d.Pairs), last)
		}
		// Cut short anywhere it is refused.
		for n := range len(b) {
			if n < 800 || n%9973 == 0 || n > len(b)-200 {
				if _, err := pickle.Decode(b[:n:n], policy, pickle.Limits{}); err == nil {
					t.Fatalf("protocol %d: %d bytes of %d are read", protocol, n, len(b))
				}
			}
		}
	}
}

// TestRefuses: each of these is refused with one sentence that says where and why.
func TestRefuses(t *testing.T) {
	deep := strings.Repeat("]", 1000) + strings.Repeat("a", 999) + "."
	for _, c := range []struct{ name, pickle, says string }{
		{"nothing", "", "at byte 0: 1 bytes are wanted and 0 are left"},
		{"no value", ".", "at byte 0: the end comes with 0 values"},
		{"two values", "NN.", "at byte 2: the end comes with 2 values"},
		{"an open mark", "(N.", "1 marks"},
		{"an unknown opcode", "N\xff.", "at byte 1: there is no opcode 0xff"},
		{"protocol 6", "\x80\x06N.", "protocol 6"},
		{"an empty stack", "0N.", "the stack is empty"},
		{"a value below a mark", "N(\x85.", "the stack is empty"},
		{"no mark", "Nt.", "a mark is wanted"},
		{"a frame beyond the end", "\x95\xff\xff\xff\xff\xff\xff\xff\xffN.", "cut short"},
		{"a string beyond the end", "X\xff\xff\xff\x7fab.", "cut short"},
		{"a string of 2^63 bytes", "\x8d\xff\xff\xff\xff\xff\xff\xff\x7fab.", "cut short"},
		{"a string of 2^64-1 bytes", "\x8d\xff\xff\xff\xff\xff\xff\xff\xffab.", "cut short"},
		{"an integer of 2^31 bytes", "\x8b\xff\xff\xff\x7fab.", "cut short"},
		{"an integer of 2000 bytes", "\x8b\xd0\x07\x00\x00" + strings.Repeat("1", 2000) + ".", "an integer of 2000 bytes"},
		{"an integer of many digits", "I" + strings.Repeat("1", 5000) + "\n.", "5000 digits"},
		{"no integer", "Ix\n.", `"x" is not an integer`},
		{"no number", "Fx\n.", `"x" is not a number`},
		{"no UTF-8", "\x8c\x01\xff.", "not UTF-8"},
		{"half a character", "V\\ud800\n.", "no character"},
		{"a short escape", "V\\u12\n.", "no character"},
		{"no quotes", "Sx\n.", "without quotes"},
		{"an escape at the end", "S'\\'\n.", "within an escape"},
		{"an escape of one digit", "S'\\x1'\n.", "two hex digits"},
		{"an unknown escape", "S'\\q'\n.", "escape"},
		{"an unset number", "h\x05.", "no value with the number 5"},
		{"a number that is no number", "gx\n.", "not the number of a value"},
		{"a memo of 2^32", "Nr\xff\xff\xff\xff.", "it numbers a value 4294967295"},
		{"a memo of 2^32 in text", "Np4294967295\n.", "it numbers a value 4294967295"},
		{"append to None", "NNa.", "values are appended to None"},
		{"a key of a list", "]NNs.", "keys are set in a list"},
		{"an item of a list", "](N\x90.", "values are added to a list"},
		{"a key without a value", "}(Nu.", "a key without a value"},
		{"a call of None", "N)R.", "None is called"},
		{"a global of numbers", "K\x01K\x02\x93.", "a global is named by an int"},
		{"the state of a list", "]Nb.", "the state of a list is set"},
		{"the state twice", "ctorch\nSize\n)\x81NbNb.", "the state of a torch.Size is set twice"},
		{"a class of Python 2", "(itorch\nSize\n.", "Python 2"},
		{"an object of Python 2", "(ctorch\nSize\no.", "Python 2"},
		{"an extension", "\x82\x01.", "extension codes"},
		{"a buffer outside", "\x97.", "buffers outside"},
		{"a persistent id", "NQ.", "persistent ids"},
		{"a persistent id in text", "Px\n.", "persistent ids"},
		{"an unknown global", "N0c__main__\nModel\n.", "names __main__.Model at byte 2, which is not on the list"},
		{"a system call", "cos\nsystem\n(S'true'\ntR.", "names os.system at byte 0, with which it would run code"},
		{"a nested list", deep, "nest more than 128 deep"},
		{"itself", "]\x94h\x00a.", "contains itself"},
		{"itself through a tuple", "]\x94h\x00\x85a.", "contains itself"},
		{"itself through an object", "ctorch\nSize\n)\x81\x94h\x00b.", "contains itself"},
		{"a bomb", doubling(60) + ".", "written out it has more than"},
		{"many empty dicts", "](" + strings.Repeat(strings.Repeat("}", 1000)+"e(", 10<<10) + "e.", "its values have more than"},
		{"a deep stack", "(" + strings.Repeat("N", 2<<20) + "t.", "values wait on its stack"},
	} {
		doc, err := pickle.Decode([]byte(c.pickle), pickle.Policy{Known: []pickle.Name{{Module: "torch", Name: "Size"}}}, pickle.Limits{})
		if err == nil || !strings.Contains(err.Error(), c.says) || doc != nil {
			t.Errorf("%s: %v, want %q", c.name, err, c.says)
		}
	}
}

// doubling is a list that has another list twice, and so on: few bytes, and 2^n values when it is written out.
func doubling(n int) string {
	s := "]\x94"
	for i := range n {
		s += fmt.Sprintf("0]\x94h%ch%c\x86a", byte(i), byte(i))
	}
	return s
}

// TestDangerous: what gives power over the machine is refused where foreign globals are let through, whichever way it is named.
func TestDangerous(t *testing.T) {
	for _, name := range []pickle.Name{
		{Module: "os", Name: "system"}, {Module: "posix", Name: "system"}, {Module: "builtins", Name: "eval"}, {Module: "__builtin__", Name: "eval"},
		{Module: "builtins", Name: "getattr"}, {Module: "subprocess", Name: "Popen"}, {Module: "importlib.util", Name: "find_spec"},
		{Module: "torch.serialization", Name: "load"}, {Module: "builtins", Name: "object.__subclasses__"},
	} {
		for _, b := range []string{"c" + name.Module + "\n" + name.Name + "\n.", fmt.Sprintf("\x8c%c%s\x8c%c%s\x93.", len(name.Module), name.Module, len(name.Name), name.Name)} {
			var unknown *pickle.UnknownGlobalError
			_, err := pickle.Decode([]byte(b), pickle.Policy{Foreign: true}, pickle.Limits{})
			if !errors.As(err, &unknown) || !unknown.Dangerous || unknown.Module != name.Module || unknown.Name != name.Name || !strings.Contains(err.Error(), "find out who wrote it") {
				t.Errorf("%v: %v", name, err)
			}
		}
	}
	for _, name := range []pickle.Name{{Module: "pathlib", Name: "PosixPath"}, {Module: "numpy.core.multiarray", Name: "scalar"}, {Module: "__main__", Name: "Config"}} {
		if pickle.Dangerous(name.Module, name.Name) {
			t.Errorf("%v is dangerous", name)
		}
	}
}

// TestForeign: an object of an unknown class is one value, whatever is in it, also itself.
func TestForeign(t *testing.T) {
	b := "}(X\x01\x00\x00\x00aK\x01X\x01\x00\x00\x00bc__main__\nA\n)\x81\x94}X\x04\x00\x00\x00selfh\x00sbX\x01\x00\x00\x00ch\x00)Ru."
	doc, err := pickle.Decode([]byte(b), pickle.Policy{Foreign: true}, pickle.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	d := doc.Value.(*pickle.Dict)
	if a, _ := d.Get("a"); a != any(int64(1)) {
		t.Errorf("a is %v", a)
	}
	object, _ := d.Get("b")
	if o, ok := object.(*pickle.Object); !ok || o.Known() || o.Global().String() != "__main__.A" || !o.HasState {
		t.Errorf("b is %s", pickle.Describe(object))
	}
	call, _ := d.Get("c")
	if o, ok := call.(*pickle.Object); !ok || o.Known() || o.Class != object {
		t.Errorf("c is %s", pickle.Describe(call))
	}
}

// TestEncode: what is written is read as the same, shared parts are written once, and there are always the same bytes.
func TestEncode(t *testing.T) {
	shared := &pickle.Tuple{Items: []any{"in both", int64(1 << 40)}}
	long := &pickle.List{}
	for i := range 5000 {
		long.Items = append(long.Items, int64(i))
	}
	value := &pickle.Dict{Pairs: []pickle.Pair{
		{Key: "a", Value: shared}, {Key: "b", Value: &pickle.List{Items: []any{shared, nil, true, 1.5, pickle.Bytes("x"), &pickle.Tuple{}}}},
		{Key: strings.Repeat("k", 300), Value: long},
		{Key: int64(-70000), Value: &pickle.Set{Items: []any{"in both"}}},
		{Key: "f", Value: &pickle.Set{Items: []any{int64(1)}, Frozen: true}},
		{Key: "o", Value: &pickle.Object{Class: &pickle.Global{Module: "m", Name: "C"}, Args: &pickle.Tuple{}, New: true, HasState: true, State: shared}},
		{Key: "r", Value: &pickle.Object{Class: &pickle.Global{Module: "m", Name: "C"}, Args: &pickle.Tuple{Items: []any{int64(1)}}, Items: []any{int64(2)}, Pairs: []pickle.Pair{{Key: "p", Value: nil}}}},
	}}
	first, err := pickle.Encode(value)
	if err != nil {
		t.Fatal(err)
	}
	doc, err := pickle.Decode(first, pickle.Policy{Known: []pickle.Name{{Module: "m", Name: "C"}}}, pickle.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	if got, want := fmt.Sprint(plainPairs(doc.Value.(*pickle.Dict).Pairs)), fmt.Sprint(plainPairs(value.Pairs)); got != want {
		t.Errorf("read as\n%.500s, want\n%.500s", got, want)
	}
	second, err := pickle.Encode(doc.Value)
	if err != nil || !slices.Equal(first, second) {
		t.Errorf("written again it differs, %v", err)
	}
	if n := strings.Count(string(first), "in both"); n != 1 {
		t.Errorf("a shared string is written %d times", n)
	}
	loop := &pickle.Tuple{}
	loop.Items = []any{&pickle.List{Items: []any{loop}}}
	for _, bad := range []any{loop, int8(1), &pickle.List{Items: []any{struct{}{}}}, big.NewInt(1)} {
		if _, err := pickle.Encode(bad); err == nil {
			t.Errorf("%T is written", bad)
		}
	}
	var nest any = "x"
	for range 500 {
		nest = &pickle.List{Items: []any{nest}}
	}
	if _, err := pickle.Encode(nest); err == nil {
		t.Error("a list 500 deep is written")
	}
}
