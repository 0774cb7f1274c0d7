// SPDX-License-Identifier: Apache-2.0

package ckpt_test

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"phalanx/ckpt"
	"phalanx/ckpt/mem"
)

// someMarks has one mark of each kind.
func someMarks() []*ckpt.Mark {
	return []*ckpt.Mark{
		{Format: 2, Kind: ckpt.PinMark, Job: "job", Number: 1, SHA256: hash(1), UnixNS: 7, By: "ada", Why: "paper"},
		{Format: 2, Kind: ckpt.HoldMark, Job: "job", Number: 2, SHA256: hash(2), UnixNS: 7, Owner: "eval-3", UntilUnixNS: 9},
		{Format: 2, Kind: ckpt.VerifiedMark, Job: "job", Number: 3, SHA256: hash(3), UnixNS: 7, Level: ckpt.LevelData, OK: true, Version: "1.0"},
		{Format: 2, Kind: ckpt.SeenMark, Job: "job", UnixNS: 7, Attempt: "step-3-g1-a2.77"},
		{Format: 2, Kind: ckpt.SettledMark, Job: "job", Number: 40, SHA256: hash(4), UnixNS: 7, Left: []uint64{3, 39}},
	}
}

func TestMarkKeys(t *testing.T) {
	want := []string{"job/pins/000000000001.json", "job/holds/000000000002.eval-3.json", "job/verified/000000000003.json", "job/abandoned/step-3-g1-a2.77.json", "job/settled.json"}
	for i, m := range someMarks() {
		if m.Key() != want[i] || ckpt.ValidKey(m.Key()) != nil {
			t.Errorf("%s, want %s", m.Key(), want[i])
		}
	}
}

func TestMarksRefuse(t *testing.T) {
	for name, edit := range map[string]func(*ckpt.Mark){
		"format 1":        func(m *ckpt.Mark) { m.Format = 1 },
		"newer format":    func(m *ckpt.Mark) { m.Format = 3 },
		"kind":            func(m *ckpt.Mark) { m.Kind = "note" },
		"job":             func(m *ckpt.Mark) { m.Job = "a/b" },
		"number":          func(m *ckpt.Mark) { m.Number = 0 },
		"digest":          func(m *ckpt.Mark) { m.SHA256 = "x" },
		"words":           func(m *ckpt.Mark) { m.Why = strings.Repeat("x", ckpt.MaxWhy+1) },
		"owner":           func(m *ckpt.Mark) { m.Kind, m.Owner = ckpt.HoldMark, "a/b" },
		"no owner":        func(m *ckpt.Mark) { m.Kind = ckpt.HoldMark },
		"level":           func(m *ckpt.Mark) { m.Kind, m.Level = ckpt.VerifiedMark, "deep" },
		"no level":        func(m *ckpt.Mark) { m.Kind = ckpt.VerifiedMark },
		"attempt":         func(m *ckpt.Mark) { m.Kind, m.Number, m.Attempt = ckpt.SeenMark, 0, "step" },
		"settled too far": func(m *ckpt.Mark) { m.Kind, m.Left = ckpt.SettledMark, []uint64{2} },
		"settled nothing": func(m *ckpt.Mark) { m.Kind, m.Left = ckpt.SettledMark, []uint64{0} },
		"out of order":    func(m *ckpt.Mark) { m.Kind, m.Number, m.Left = ckpt.SettledMark, 9, []uint64{2, 2} },
		"seen a number":   func(m *ckpt.Mark) { m.Kind, m.Attempt = ckpt.SeenMark, "step-3-g1-a2.77" },
	} {
		m := *someMarks()[0]
		edit(&m)
		if _, err := m.Encode(); err == nil {
			t.Errorf("%s: encoded", name)
		}
	}
}

// A pin, a hold or a verification that is damaged keeps the checkpoint that its key names, and is told.
func TestDamagedMarksKeep(t *testing.T) {
	for _, m := range someMarks()[:3] {
		for name, content := range map[string]string{"not JSON": "{", "empty": "", "of another number": "", "too large": strings.Repeat(" ", ckpt.MaxMarkBytes+1)} {
			s := mem.New()
			tinySeries(t, s, 6)
			m.Number = 1
			if name == "of another number" {
				other := *m
				other.Number = 2
				b, err := other.Encode()
				if err != nil {
					t.Fatal(err)
				}
				content = string(b)
			}
			if err := s.Put(t.Context(), m.Key(), ckpt.Bytes([]byte(content))); err != nil {
				t.Fatal(err)
			}
			inv := inventory(t, s)
			if len(inv.Marks.Problems) != 1 || inv.Marks.Problems[0].Number != 1 || inv.Marks.Problems[0].Error() == "" {
				t.Fatalf("%s %s: %+v", m.Kind, name, inv.Marks.Problems)
			}
			done, err := forget(t, s, 0, 1)
			if !errors.Is(err, ckpt.ErrProtected) || len(done.Numbers) != 0 {
				t.Fatalf("%s %s: %+v %v", m.Kind, name, done, err)
			}
		}
	}
}

// What is not a name of a mark says nothing.
func TestForeignNamesAmongMarks(t *testing.T) {
	s := mem.New()
	tinySeries(t, s, 6)
	for _, key := range []string{"job/pins/1.json", "job/pins/000000000001.json.bak", "job/pins/README", "job/holds/000000000001.json",
		"job/verified/000000000000.json", "job/abandoned/step-1.json", "job/abandoned/x"} {
		if err := s.Put(t.Context(), key, ckpt.Bytes([]byte("{"))); err != nil {
			t.Fatal(err)
		}
	}
	if inv := inventory(t, s); len(inv.Marks.Problems) != 0 {
		t.Fatal(inv.Marks.Problems)
	}
	if _, err := forget(t, s, 0, 1); err != nil {
		t.Fatal(err)
	}
}

func TestMarksAreBounded(t *testing.T) {
	s := mem.New()
	tinySeries(t, s, 3)
	for i := range ckpt.MaxMarks + 1 {
		if err := s.Put(t.Context(), fmt.Sprintf("job/holds/000000000001.o%d.json", i), ckpt.Bytes([]byte("{"))); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := ckpt.ReadMarks(t.Context(), s, "job"); err == nil || !strings.Contains(err.Error(), "more than") {
		t.Fatal(err)
	}
}

func TestVerificationsAreRecorded(t *testing.T) {
	s := mem.New()
	tinySeries(t, s, 4)
	ctx := t.Context()
	record := func(n uint64, level ckpt.Level, ok bool) {
		t.Helper()
		r, err := ckpt.ReadRecord(ctx, s, "job", n)
		if err != nil {
			t.Fatal(err)
		}
		if err := ckpt.RecordVerified(ctx, s, r, level, ok, "ada", "1.0", noon); err != nil {
			t.Fatal(err)
		}
	}
	level := func(n uint64) string {
		t.Helper()
		m := inventory(t, s).Marks.Verified[n]
		if m == nil {
			return "none"
		}
		return fmt.Sprint(m.Level, " ", m.OK)
	}
	record(1, ckpt.LevelData, true)
	record(2, ckpt.LevelHead, true)
	record(1, ckpt.LevelManifest, true) // says less than is known
	if level(1) != "data true" || level(2) != "head true" || level(3) != "none" {
		t.Fatal(level(1), level(2), level(3))
	}
	if _, err := forget(t, s, 0, 1); !errors.Is(err, ckpt.ErrProtected) {
		t.Fatalf("the last one that was verified to the last byte: %v", err)
	}
	record(1, ckpt.LevelHead, false) // damage found later
	if level(1) != "head false" {
		t.Fatal(level(1))
	}
	if _, err := forget(t, s, 0, 2); !errors.Is(err, ckpt.ErrProtected) {
		t.Fatalf("the last one that was verified: %v", err)
	}
	if done, err := forget(t, s, 0, 1); err != nil || len(done.Numbers) != 1 {
		t.Fatal(done, err)
	}
	// The newest two that are whole are kept, and a failed verification says that one is not.
	record(4, ckpt.LevelData, false)
	record(3, ckpt.LevelData, true)
	if _, err := forget(t, s, 0, 2); !errors.Is(err, ckpt.ErrProtected) {
		t.Fatalf("one of the two that are whole: %v", err)
	}
	// A mark that is damaged is mended by the next verification.
	if err := s.Put(ctx, "job/verified/000000000003.json", ckpt.Bytes([]byte("{"))); err != nil {
		t.Fatal(err)
	}
	record(3, ckpt.LevelManifest, true)
	if level(3) != "manifest true" {
		t.Fatal(level(3))
	}
}

func FuzzMark(f *testing.F) {
	for _, m := range someMarks() {
		b, err := m.Encode()
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := ckpt.DecodeMark(b)
		if err != nil {
			return
		}
		if err := ckpt.ValidKey(m.Key()); err != nil {
			t.Fatal(err)
		}
		c, err := m.Encode()
		if err != nil {
			t.Fatal(err)
		}
		again, err := ckpt.DecodeMark(c)
		if err != nil {
			t.Fatalf("what was decoded and encoded is refused: %v", err)
		}
		if d, err := again.Encode(); err != nil || !bytes.Equal(c, d) || again.Key() != m.Key() {
			t.Fatalf("%s became %s (%v)", c, d, err)
		}
		_ = time.Unix(0, m.UntilUnixNS).String()
	})
}
