// SPDX-License-Identifier: Apache-2.0

package elastic

import (
	"bytes"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
)

// commandTypes holds a zero command of every kind.
var commandTypes = []Command{AdmitMembers{}, EvictMembers{}, FormGeneration{}, Rewind{}, Activate{}, PublishCheckpoint{}, ReachLevel{}, Quarantine{}, Lift{}, Drain{}, Resize{}, Halt{}, Resume{}, Done{}}

// fillIn gives every exported field below v a value that is not zero.
func fillIn(v reflect.Value, r *rand.Rand) {
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Field(i).CanSet() {
				fillIn(v.Field(i), r)
			}
		}
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fillIn(v.Elem(), r)
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		for i := range v.Len() {
			fillIn(v.Index(i), r)
		}
	case reflect.Array:
		for i := range v.Len() {
			fillIn(v.Index(i), r)
		}
	case reflect.String:
		v.SetString([]string{"h/1", "seed", "live", "é\"\\\n"}[r.IntN(4)])
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int64:
		v.SetInt(int64(r.Uint32()) - 1<<31 | 1)
	case reflect.Uint8:
		v.SetUint(1)
	case reflect.Uint32:
		v.SetUint(uint64(r.Uint32() | 1))
	case reflect.Uint64:
		v.SetUint(r.Uint64() | 1)
	case reflect.Float64:
		v.SetFloat(r.Float64() + 1)
	default:
		panic("a field of kind " + v.Kind().String() + " is not filled in")
	}
}

func TestCommandsReadBack(t *testing.T) {
	names := map[string]bool{}
	for _, zero := range commandTypes {
		names[reflect.TypeOf(zero).Name()] = true
		for seed := range uint64(20) {
			v := reflect.New(reflect.TypeOf(zero)).Elem()
			if seed > 0 {
				fillIn(v, rand.New(rand.NewPCG(seed, 1)))
			}
			want := v.Interface().(Command)
			b, err := EncodeCommand(want)
			if err != nil {
				t.Fatal(err)
			}
			got, err := DecodeCommand(b)
			if err != nil {
				t.Fatalf("%s: %v", b, err)
			}
			if !reflect.DeepEqual(got, want) {
				t.Errorf("%T reads back as\n%+v\nwant\n%+v", want, got, want)
			}
		}
	}
	for _, name := range implementers(t, "kind") {
		if !names[name] {
			t.Errorf("command %s is not read back by any test", name)
		}
	}
}

func TestUnknownCommandsAreRefused(t *testing.T) {
	for _, c := range []struct {
		bytes   string
		unknown bool
	}{
		{`{"v":1,"kind":"rotate_key","body":{}}`, true},
		{`{"v":3,"kind":"drain","body":{"member":"a/0"}}`, true},
		{`{"v":99,"kind":"from_the_future","body":7}`, true},
		{`{"v":1,"kind":"","body":{}}`, true},
		{`{"kind":"drain","body":{"member":"a/0"}}`, false},
		{`{"v":-1,"kind":"drain","body":{}}`, false},
		{`{"v":1,"kind":"drain","body":7}`, false},
		{`{"v":1,"kind":"drain"}`, false},
		{`not json`, false},
		{``, false},
	} {
		got, err := DecodeCommand([]byte(c.bytes))
		if err == nil || got != nil {
			t.Errorf("%s is read as %+v", c.bytes, got)
		}
		if errors.Is(err, ErrUnknownCommand) != c.unknown {
			t.Errorf("%s: %v; unknown is %v, want %v", c.bytes, err, !c.unknown, c.unknown)
		}
	}
	type foreign struct{ Command }
	s := inPhase(t, "running")
	if _, err := s.Apply(foreign{Drain{}}); !errors.Is(err, ErrUnknownCommand) {
		t.Errorf("a command of no kind: %v", err)
	}
}

// TestStateReadsBack: a state is stored in snapshots of the log as JSON.
func TestStateReadsBack(t *testing.T) {
	want := new(State)
	fillIn(reflect.ValueOf(want).Elem(), rand.New(rand.NewPCG(1, 2)))
	want.Phase, want.Members[0].State, want.Members[1].State = Halted, Draining, Gone
	b, err := json.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	got := new(State)
	if err := json.Unmarshal(b, got); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("the state reads back as\n%+v\nwant\n%+v", got, want)
	}
	if !strings.Contains(string(b), `"phase":"halted"`) {
		t.Errorf("the phase is not in words: %s", b)
	}
}

// FuzzDecodeCommand: bytes of a log never panic, what is read writes itself back, and Apply keeps its invariants.
func FuzzDecodeCommand(f *testing.F) {
	for _, zero := range commandTypes {
		v := reflect.New(reflect.TypeOf(zero)).Elem()
		for seed := range uint64(2) {
			if seed > 0 {
				fillIn(v, rand.New(rand.NewPCG(seed, 3)))
			}
			b, err := EncodeCommand(v.Interface().(Command))
			if err != nil {
				f.Fatal(err)
			}
			f.Add(b)
		}
	}
	for _, make := range tableCommands {
		b, err := EncodeCommand(make(inPhase(f, "running")))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	states := []*State{NewState()}
	for _, phase := range []string{"idle", "forming", "running", "halted", "ended", "finished"} {
		states = append(states, inPhase(f, phase))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		c, err := DecodeCommand(b)
		if err != nil {
			return
		}
		once, err := EncodeCommand(c)
		if err != nil {
			t.Fatalf("%+v was read and is not written: %v", c, err)
		}
		again, err := DecodeCommand(once)
		if err != nil {
			t.Fatalf("%s is not read back: %v", once, err)
		}
		twice, err := EncodeCommand(again)
		if err != nil || !bytes.Equal(once, twice) {
			t.Fatalf("%s is written back as %s: %v", once, twice, err)
		}
		for _, before := range states {
			after, err := before.Apply(c)
			if err != nil {
				continue
			}
			if err := errors.Join(Check(after), CheckStep(before, after)); err != nil {
				t.Fatalf("%s: %v", once, err)
			}
		}
	})
}
