// SPDX-License-Identifier: Apache-2.0

package ckpt_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"phalanx/ckpt"
	"phalanx/ckpt/mem"
)

// goldenRetain holds what retention leaves in a store, format 2: a job with four checkpoints of which the first two are
// forgotten and the third was swept, and one mark of each kind.
const goldenRetain = "testdata/golden-retain-v2"

// writeGoldenRetain makes the files anew. Tokens are random, so tests do not write them again.
func writeGoldenRetain(t *testing.T) {
	t.Helper()
	s := mem.New()
	saveGolden(t, s)
	st := blank(smallLayout()[1:2])
	for i := range 3 {
		if _, err := save(t, s, attempt(300+i, 7, uint64(i)), st, 1); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := forget(t, s, 0, 3); err != nil {
		t.Fatal(err)
	}
	if _, err := collect(t.Context(), s, noon, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := forget(t, s, 24*time.Hour, 1, 2); err != nil {
		t.Fatal(err)
	}
	files := objects(t, s, "job/commits/")
	delete(files, ckpt.CommitKey("job", 4))
	delete(files, ckpt.CommitKey("job", 5))
	for _, m := range someMarks() {
		b, err := m.Encode()
		if err != nil {
			t.Fatal(err)
		}
		files[m.Key()] = string(b)
	}
	for key, content := range files {
		path := filepath.Join(goldenRetain, key)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func readGoldenRetain(tb testing.TB, key string) []byte {
	tb.Helper()
	b, err := os.ReadFile(filepath.Join(goldenRetain, key))
	if err != nil {
		tb.Fatal(err)
	}
	return b
}

// Today's reader reads the files, and today's writer writes what it read byte for byte.
func TestGoldenRetain(t *testing.T) {
	if *rewrite {
		writeGoldenRetain(t)
	}
	for n, phase := range map[uint64]ckpt.Phase{1: ckpt.Forgotten, 2: ckpt.Forgotten, 3: ckpt.Swept} {
		b := readGoldenRetain(t, ckpt.CommitKey("job", n))
		r, err := ckpt.DecodeRecord(b)
		if err != nil {
			t.Fatal(err)
		}
		s := r.Stub
		if r.Number != n || s == nil || s.At() != phase || s.Format != 2 || s.ForgottenUnixNS != noon.UnixNano() || s.By != "tester" || s.Why != "test" || s.Token == "" {
			t.Fatalf("%d: %+v", n, s)
		}
		if again, err := s.Encode(); err != nil || !bytes.Equal(again, b) {
			t.Fatalf("%d is written as\n%s\nwant\n%s", n, again, b)
		}
		if phase != ckpt.Forgotten {
			continue
		}
		// The commit object inside is the golden one of format 1, as it was stored.
		want := goldenFiles(t, strings.TrimPrefix(ckpt.CommitKey("job", n), "job/"))[0]
		if !bytes.Equal(s.Commit, want) || !s.Until().Equal(noon.Add(24*time.Hour)) {
			t.Fatalf("%d holds %s", n, s.Commit)
		}
	}
	for _, m := range someMarks() {
		b := readGoldenRetain(t, m.Key())
		got, err := ckpt.DecodeMark(b)
		if err != nil || got.Sum == nil {
			t.Fatalf("%s: %+v, %v", m.Key(), got, err)
		}
		plain := *got
		if plain.Sum = nil; !reflect.DeepEqual(&plain, m) {
			t.Fatalf("%s: %+v, want %+v", m.Key(), got, m)
		}
		for i := range b {
			flipped := bytes.Clone(b)
			flipped[i] ^= 1
			if got, err := ckpt.DecodeMark(flipped); err == nil {
				t.Fatalf("%s: byte %d is not missed: %+v", m.Key(), i, got)
			}
		}
		if again, err := got.Encode(); err != nil || !bytes.Equal(again, b) {
			t.Fatalf("%s is written as %s (%v)", m.Key(), again, err)
		}
	}
}

func TestStubsRefuse(t *testing.T) {
	forgotten, swept := string(readGoldenRetain(t, ckpt.CommitKey("job", 2))), string(readGoldenRetain(t, ckpt.CommitKey("job", 3)))
	other := readGoldenRetain(t, ckpt.CommitKey("job", 1))
	r, err := ckpt.DecodeRecord(other)
	if err != nil {
		t.Fatal(err)
	}
	for name, edit := range map[string][3]string{
		"newer format":                 {forgotten, `"format": 2`, `"format": 3`},
		"format 1 with a phase":        {swept, `"format": 2`, `"format": 1`},
		"format 2 with swept":          {swept, `"phase": "swept"`, `"swept": true, "phase": "swept"`},
		"no phase":                     {swept, `"phase": "swept"`, `"phase": ""`},
		"phase":                        {swept, `"phase": "swept"`, `"phase": "gone"`},
		"forgotten without the commit": {swept, `"phase": "swept"`, `"phase": "forgotten"`},
		"swept with the commit":        {forgotten, `"phase": "forgotten"`, `"phase": "swept"`},
		"sweeping with the commit":     {forgotten, `"phase": "forgotten"`, `"phase": "sweeping"`},
		"another digest":               {forgotten, `"sha256": "`, `"sha256": "` + strings.Repeat("0", 64) + `","x": "`},
		"a damaged commit":             {forgotten, `"commit": "e`, `"commit": "f`},
		"another number":               {forgotten, `"number": 2`, `"number": 3`},
		"another branch":               {forgotten, `"branch": 0`, `"branch": 1`},
		"trailing":                     {swept, "}\n", "} {}"},
	} {
		if !strings.Contains(edit[0], edit[1]) {
			t.Fatalf("%s: the golden stub has no %s", name, edit[1])
		}
		edited := strings.Replace(edit[0], edit[1], edit[2], 1)
		if _, err := ckpt.DecodeRecord(summed(edited)); !errors.Is(err, ckpt.ErrFormat) {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := ckpt.DecodeRecord([]byte(edited)); err == nil {
			t.Errorf("%s: taken without its checksum", name)
		}
	}
	// A stub that holds the whole commit object of another number.
	s := *r.Stub
	s.Number, s.Predecessor = 2, strings.Repeat("a", 64)
	b, err := s.Encode()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ckpt.DecodeRecord(b); !errors.Is(err, ckpt.ErrFormat) {
		t.Error(err)
	}
}

// stubSeeds are stubs of every phase and format.
func stubSeeds(tb testing.TB) [][]byte {
	var all [][]byte
	for n := range uint64(3) {
		all = append(all, readGoldenRetain(tb, ckpt.CommitKey("job", n+1)))
	}
	return append(all, bytes.Replace(all[2], []byte(`"phase": "swept"`), []byte(`"phase": "sweeping"`), 1))
}

// FuzzStub: what is read as a stub is written as it was read, and what it promises to hold it holds.
func FuzzStub(f *testing.F) {
	for _, b := range stubSeeds(f) {
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := ckpt.DecodeRecord(b)
		if err != nil || r.Stub == nil {
			return
		}
		s := r.Stub
		_ = (&ckpt.RemovedError{Stub: s}).Error()
		if s.At() == ckpt.Forgotten {
			inside, err := ckpt.DecodeRecord(s.Commit)
			if err != nil || inside.Commit == nil || inside.SHA256 != r.SHA256 || inside.Number != r.Number || inside.Attempt() != r.Attempt() || inside.Predecessor() != r.Predecessor() {
				t.Fatalf("it holds %+v (%v)", inside, err)
			}
		} else if !s.Until().IsZero() {
			t.Fatalf("%+v can be undeleted", s)
		}
		c, err := s.Encode()
		if err != nil {
			t.Fatal(err)
		}
		if again, err := ckpt.DecodeRecord(c); err != nil || again.Stub == nil || again.Stub.At() != s.At() {
			t.Fatalf("what was decoded and encoded is refused: %v", err)
		}
	})
}
