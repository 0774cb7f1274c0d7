// SPDX-License-Identifier: Apache-2.0

package supervise

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"phalanx/node"
)

// FuzzFollow: what trainers print comes out whole, line by line, however it was cut when it was looked at.
func FuzzFollow(f *testing.F) {
	f.Add("one\ntwo\n\nthree", 5)
	f.Add("\r\n\x00\xff", 1)
	f.Fuzz(func(t *testing.T, text string, cut int) {
		dir := t.TempDir()
		var out bytes.Buffer
		follow := newFollower(dir, "h", &out)
		cut = min(max(cut, 0), len(text))
		path := filepath.Join(dir, "h.0.1.log")
		appendTo(t, path, text[:cut])
		follow.scan()
		appendTo(t, path, text[cut:])
		follow.scan()
		follow.finish()
		want := ""
		for line := range strings.Lines(text) {
			want += "h/0 | " + strings.TrimSuffix(line, "\n") + "\n"
		}
		if out.String() != want {
			t.Fatalf("printed %q, want %q", out.String(), want)
		}
	})
}

// FuzzOutcome: what a member left about its end is read or counts as nothing.
func FuzzOutcome(f *testing.F) {
	f.Add([]byte(`{"code":75,"reason":"x","pid":5}`))
	f.Add([]byte(`{"code":"0"}`))
	f.Add([]byte(`null`))
	f.Fuzz(func(t *testing.T, b []byte) {
		dir := t.TempDir()
		for _, path := range []string{node.NewPaths(dir, "").Outcome(0), FailurePath(dir, 0)} {
			if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, b, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if o := readOutcome(dir, 0); o != nil {
			if err := WriteFile(node.NewPaths(dir, "").Outcome(1), o); err != nil {
				t.Fatal(err)
			}
			if again := readOutcome(dir, 1); again == nil || *again != *o {
				t.Fatalf("%+v, then %+v", o, again)
			}
			conclude([]node.Outcome{*o})
		}
		if x := readFailure(dir, 0, 5); x != nil && x.PID != 5 {
			t.Fatalf("the failure of another daemon: %+v", x)
		}
	})
}

// FuzzWords: whatever a daemon leaves as its last words is a failure with a reason, a few lines, or nothing.
func FuzzWords(f *testing.F) {
	f.Add([]byte(`{"pid":5,"code":1,"reason":"the disk is full"}`))
	f.Add([]byte("panic: x\n\ngoroutine 1 [running]:\nmain.main()\n\t/x.go:1\n"))
	f.Add([]byte(`{"code":"0"}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		words, err := newWords()
		if err != nil {
			t.Fatal(err)
		}
		defer words.Close()
		if _, err := words.Write(b); err != nil {
			t.Fatal(err)
		}
		x, crash := readWords(words)
		if x != nil && (x.Reason == "" || crash != "") || strings.Count(crash, "\n") > 3 || len(crash) > len(b) {
			t.Fatalf("read %+v, %q", x, crash)
		}
	})
}
