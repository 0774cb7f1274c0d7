// SPDX-License-Identifier: Apache-2.0

package node

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestRotate(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.0.1.log")
	if err := rotate(path, 10); err != nil {
		t.Fatalf("no output yet: %v", err)
	}
	out, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	read := func(path string) string {
		b, _ := os.ReadFile(path)
		return string(b)
	}
	write := func(s string) {
		if _, err := out.WriteString(s); err != nil {
			t.Fatal(err)
		}
	}
	write("short\n")
	if err := rotate(path, 10); err != nil || read(path) != "short\n" {
		t.Fatalf("a short log became %q, %v", read(path), err)
	}
	write(strings.Repeat("x", 10))
	if err := rotate(path, 10); err != nil || read(path) != "" || read(path+".1") != "short\n"+strings.Repeat("x", 10) {
		t.Fatalf("rotated to %q and %q, %v", read(path), read(path+".1"), err)
	}
	write("goes on\n") // the writer has not noticed
	if read(path) != "goes on\n" {
		t.Fatalf("after the rotation the log holds %q", read(path))
	}
}
