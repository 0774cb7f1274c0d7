// SPDX-License-Identifier: Apache-2.0

package node

import (
	"os"
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

// What torch 2.15 writes, from a script with @record that raised in main.
const recordedError = `{"message": {"message": "ValueError: no such split: 'trian'\nsecond line", "extraInfo": {"py_callstack": "Traceback (most recent call last):\n  File \"/x/torch/distributed/elastic/multiprocessing/errors/__init__.py\", line 355, in wrapper\n    return f(*args, **kwargs)\n  File \"/home/u/train.py\", line 12, in main\n    raise ValueError(x)\nValueError: no such split: 'trian'\n", "timestamp": "1764590000"}}}`

func TestTrainerError(t *testing.T) {
	for text, want := range map[string]string{
		recordedError:                                                           "ValueError: no such split: 'trian' (/home/u/train.py:12 in main)",
		`{"message": "child failed\nat once"}`:                                  "child failed",
		`{"message": {"message": "x", "errorCode": 3}}`:                         "x",
		`{"message": {"message": "x", "extraInfo": {"timestamp": 1764590000}}}`: "x",
		`{"message": {"message": "x", "extraInfo": "none"}}`:                    "x",
		`{"message": {}}`:                                                       "", `{}`: "", `[]`: "", `{"message": 3}`: "", `{"message": " \n "}`: "", `{"mess`: "",
	} {
		e, ok := parseTrainerError([]byte(text))
		if ok != (want != "") || e.String() != want {
			t.Errorf("%.60s: %q, %t, want %q", text, e.String(), ok, want)
		}
		if at := time.Unix(1764590000, 0); strings.Contains(text, "1764590000") && !e.At.Equal(at) {
			t.Errorf("%.60s: at %s, want %s", text, e.At, at)
		}
	}
	long, _ := parseTrainerError([]byte(`{"message": "` + strings.Repeat("é", 400) + `"}`))
	if n := len(long.Message); n > maxCause+len("…") || !utf8.ValidString(long.Message) {
		t.Errorf("a long message has %d bytes", n)
	}
}

// A trainer's own word on its end comes before the last line of its output, and goes with its output.
func TestLastWordsOfATrainer(t *testing.T) {
	d := plainDaemon(t, "h", 0, plainWorld(1, incarnate("h", 0, 1)))
	who := d.life.who
	if err := os.MkdirAll(d.paths.Dir+"/log", 0o700); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ path, text, want string }{
		{d.paths.TrainerLog(who), "a\nthe last line\n", ": the last line"},
		{d.paths.TrainerError(who), "half", ": the last line"},
		{d.paths.TrainerError(who), recordedError, ": ValueError: no such split: 'trian' (/home/u/train.py:12 in main)"},
	} {
		if err := os.WriteFile(c.path, []byte(c.text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := d.lastWords(1); got != c.want {
			t.Errorf("after %q: %q, want %q", c.text, got, c.want)
		}
	}
	if err := pruneLogs(d.paths, incarnate("h", 0, 2), 1); err != nil {
		t.Fatal(err)
	}
	if entries, err := os.ReadDir(d.paths.Dir + "/log"); err != nil || len(entries) > 0 {
		t.Errorf("left are %v, %v", entries, err)
	}
}

// FuzzTrainerError: whatever a trainer writes, its cause is one short line of text.
func FuzzTrainerError(f *testing.F) {
	f.Add([]byte(recordedError))
	f.Add([]byte(`{"message": "x"}`))
	f.Add([]byte(`{"message": {"message": "x", "extraInfo": {"py_callstack": "  File \"a\", line 1, in b", "timestamp": 7}}}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		e, ok := parseTrainerError(b)
		if s := e.String(); ok == (s == "") || strings.ContainsAny(s, "\n") || len(s) > 2*(maxCause+len("…"))+3 || !utf8.ValidString(s) {
			t.Fatalf("%q, %t", s, ok)
		}
	})
}
