// SPDX-License-Identifier: Apache-2.0

package supervise

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func appendTo(t *testing.T, path, text string) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteString(text); err != nil {
		t.Fatal(err)
	}
}

func TestFollow(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	appendTo(t, at("h.x.0.1.log"), "before\n")
	var out bytes.Buffer
	f := newFollower(dir, "h.x", &out)
	want := func(text string) {
		t.Helper()
		if out.String() != text {
			t.Fatalf("printed %q, want %q", out.String(), text)
		}
		out.Reset()
	}
	f.scan()
	want("")

	appendTo(t, at("h.x.0.1.log"), "one\ntw")
	appendTo(t, at("h.x.1.12.log"), "new\n")
	appendTo(t, at("daemon.h.x.0.log"), "not a trainer\n")
	appendTo(t, at("h.y.0.1.log"), "another host\n")
	appendTo(t, at("h.x.0.log"), "no member\n")
	f.scan()
	want("h.x/0 | one\nh.x/1 | new\n")

	appendTo(t, at("h.x.0.1.log"), "o\n\n")
	f.scan()
	want("h.x/0 | two\nh.x/0 | \n")

	if err := os.Truncate(at("h.x.0.1.log"), 0); err != nil {
		t.Fatal(err)
	}
	appendTo(t, at("h.x.0.1.log"), "rotated\nlast")
	f.scan()
	want("h.x/0 | rotated\n")
	appendTo(t, at("h.x.1.12.log"), "its end")
	f.scan()
	if err := os.Remove(at("h.x.1.12.log")); err != nil {
		t.Fatal(err)
	}
	f.scan()
	want("h.x/1 | its end\n")
	if len(f.files) != 1 {
		t.Errorf("%d files are followed, one is removed", len(f.files))
	}
	f.finish()
	want("h.x/0 | last\n")
	f.finish()
	want("")
}

func TestFollowCutsEndlessLines(t *testing.T) {
	dir := t.TempDir()
	var out bytes.Buffer
	f := newFollower(dir, "h", &out)
	appendTo(t, filepath.Join(dir, "h.0.1.log"), strings.Repeat("x", maxLine+100<<10))
	f.scan()
	if n := len(f.files["h.0.1.log"].partial); n > maxLine || out.Len() == 0 {
		t.Errorf("%d bytes kept, %d printed", n, out.Len())
	}
	f.finish()
	if got := strings.Count(out.String(), "x"); got != maxLine+100<<10 {
		t.Errorf("%d bytes printed of %d", got, maxLine+100<<10)
	}
}

type closed struct{}

func (closed) Write([]byte) (int, error) { return 0, errors.New("broken pipe") }

func TestFollowOutlivesItsReader(t *testing.T) {
	dir := t.TempDir()
	f := newFollower(dir, "h", closed{})
	appendTo(t, filepath.Join(dir, "h.0.1.log"), "a\nb\n")
	f.finish()
	if f.files["h.0.1.log"].offset != 4 {
		t.Error("it does not read on")
	}
}
