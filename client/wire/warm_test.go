// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"bytes"
	"reflect"
	"strings"
	"testing"
)

func TestWarmMessage(t *testing.T) {
	want := WarmMessage{Op: WarmTake, Member: "h/0", Token: "t", Env: map[string]string{"RANK": "3", "X": "a\nb"}, Log: "/d/log/h.0.1.log"}
	var b bytes.Buffer
	if err := WriteWarm(&b, want); err != nil {
		t.Fatal(err)
	}
	if got, err := ReadWarm(&b); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, %v", got, err)
	}
	for _, text := range []string{"", "{}", "null\x00\n", "[]\n", `{"op":3}` + "\n", `{"env":{"":"x"}}` + "\n", `{"env":{"A=B":"x"}}` + "\n",
		`{"env":{"A":"\u0000"}}` + "\n", `{"log":"here"}` + "\n", `{"op":"` + strings.Repeat("x", maxWarm) + "\"}\n"} {
		if m, err := ReadWarm(strings.NewReader(text)); err == nil {
			t.Errorf("%.40q is %+v", text, m)
		}
	}
}

// FuzzReadWarm: what is read can be put into an environment, and says the same when it is written again.
func FuzzReadWarm(f *testing.F) {
	f.Add([]byte(`{"op":"take","member":"h/0","env":{"RANK":"0"},"log":"/l","token":"t"}` + "\n"))
	f.Add([]byte(`{"op":"taken","pid":7,"start":99}` + "\n"))
	f.Add([]byte(`{"op":"none"}` + "\nmore"))
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := ReadWarm(bytes.NewReader(b))
		if err != nil {
			return
		}
		var again bytes.Buffer
		if err := WriteWarm(&again, m); err != nil {
			t.Fatal(err)
		}
		if got, err := ReadWarm(&again); err != nil || !reflect.DeepEqual(got, m) {
			t.Fatalf("%+v became %+v, %v", m, got, err)
		}
		for name, value := range m.Env {
			if name == "" || strings.ContainsAny(name, "=\x00") || strings.ContainsRune(value, 0) {
				t.Fatalf("variable %q=%q", name, value)
			}
		}
	})
}
