// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The record has each step once and in order, and ends with the digest of the final line.
func TestRecordHasEveryStep(t *testing.T) {
	name := filepath.Join(t.TempDir(), "record")
	var stdout, stderr bytes.Buffer
	if code := run(small("--record", name), &stdout, &stderr); code != exitDone {
		t.Fatalf("exit %d: %s", code, &stderr)
	}
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	_, final, _ := strings.Cut(strings.TrimSpace(stdout.String()), "final step=8 digest=")
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	for i, line := range lines {
		if !strings.HasPrefix(line, fmt.Sprintf("step=%d generation=0 gradient=", i+1)) {
			t.Errorf("line %d is %q", i, line)
		}
	}
	if want := fmt.Sprintf(" parameters=%s pid=%d", final, os.Getpid()); len(lines) != 8 || !strings.HasSuffix(lines[7], want) {
		t.Errorf("%d lines, the last is not of %q: %s", len(lines), want, b)
	}
}
