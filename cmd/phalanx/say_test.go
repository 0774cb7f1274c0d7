// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"phalanx"
)

func TestPlain(t *testing.T) {
	for in, want := range map[string]string{
		"layers.0.weight": "layers.0.weight",
		"é 層 \\":          "é 層 \\",
		"a\x1b[2Jb\r\n\t": `a\x1b[2Jb\r\n\t`,
		"x\u202ey\u200b":  `x\u202ey\u200b`,
		"\xff\x9b":        `\xff\x9b`,
		"\u009b":          `\u009b`,
	} {
		if got := plain(in); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
	var b bytes.Buffer
	err := tell(&b, "%s %v %v %d %v %s\n", "a\nb", errors.New("c\x1b\nd"), []string{"e\r"}, phalanx.Step(7), []int{1}, phalanx.Digest{})
	if want := `a\nb c\x1b; d [e\r] 7 [1] ` + (phalanx.Digest{}).String() + "\n"; err != nil || b.String() != want {
		t.Errorf("%q, %v, want %q", b.String(), err, want)
	}
}

// TestEveryMessageIsPlain: what verbs print goes through say.
func TestEveryMessageIsPlain(t *testing.T) {
	raw := regexp.MustCompile(`fmt\.Fprint(f|ln)?\([arwt]\b[^,]*, ([^"]|"[^"]*%)`)
	files, err := filepath.Glob("*.go")
	if err != nil || len(files) < 20 {
		t.Fatal(files, err)
	}
	for _, name := range files {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if name == "say.go" || strings.HasSuffix(name, "_test.go") {
			continue
		}
		for _, line := range strings.Split(string(b), "\n") {
			if raw.MatchString(line) && !strings.Contains(line, ".columns()") && !strings.Contains(line, "(t, head)") {
				t.Errorf("%s: %s", name, strings.TrimSpace(line))
			}
		}
	}
}

// TestUnwrittenAnswer: an answer that cannot be written ends no verb with 0.
func TestUnwrittenAnswer(t *testing.T) {
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer full.Close()
	job := "../../ckpt/testdata/golden-raw-v1"
	dir := t.TempDir()
	for _, args := range [][]string{
		{"ckpt", "verify", job + "/job"}, {"ckpt", "verify", "--all", "--store", job, "--job", "job"}, {"ckpt", "latest", "--store", job, "--job", "job"},
		{"ckpt", "ls", "--store", job, "--job", "job"}, {"ckpt", "inspect", job + "/job"}, {"ckpt", "diff", job + "/job", job + "/job"},
		{"ckpt", "find", "layers*", job + "/job"}, {"ckpt", "convert", job + "/job", filepath.Join(dir, "a")}, {"ckpt", "dump", job + "/job", "layers.0.weight"},
		{"ckpt", "copy", job + "/job", filepath.Join(dir, "job")}, {"version"}, {"store", "probe", dir}, {"--help"},
	} {
		var errs bytes.Buffer
		code := execute(context.Background(), args, app{full, &errs, nil})
		if said := errs.String(); code != 1 || strings.Count(said, "no space left on device") != 1 || strings.Count(said, "phalanx: ") != 1 {
			t.Errorf("%v: exit code %d, %q", args, code, said)
		}
	}
}
