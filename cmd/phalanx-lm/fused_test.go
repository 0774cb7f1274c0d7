// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"
)

// The golden digest shows that this machine rounds every product; the compiled code shows it of machines that are not here.
func TestNoProductIsFused(t *testing.T) {
	if testing.Short() {
		t.Skip("compiles for other machines")
	}
	tool, err := exec.LookPath("go")
	if err != nil {
		t.Skip("no go command")
	}
	// Read the sources, so that a cached result does not outlive them: here both ways to write a product give equal code.
	sources, err := filepath.Glob("lm/*.go")
	if err != nil || len(sources) == 0 {
		t.Fatalf("no sources: %v", err)
	}
	for _, s := range sources {
		if _, err := os.ReadFile(s); err != nil {
			t.Fatal(err)
		}
	}
	fused := regexp.MustCompile(`(?m)^.*\b(VFN?M(ADD|SUB)\w+|FN?M(ADD|SUB)[SD])\b.*$`)
	for _, target := range [][]string{{"GOARCH=amd64", "GOAMD64=v3"}, {"GOARCH=arm64"}} {
		object := filepath.Join(t.TempDir(), "lm.a")
		build := exec.CommandContext(t.Context(), tool, "build", "-o", object, "./lm")
		build.Env = append(append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux"), target...)
		if out, err := build.CombinedOutput(); err != nil {
			t.Fatalf("%v: %v\n%s", target, err, out)
		}
		code, err := exec.CommandContext(t.Context(), tool, "tool", "objdump", object).Output()
		if err != nil {
			t.Fatalf("%v: %v", target, err)
		}
		if len(code) < 10_000 {
			t.Fatalf("%v: %d bytes of listing; the package is not in it", target, len(code))
		}
		for _, line := range fused.FindAll(code, 5) {
			t.Errorf("%v: %s; write the product as float32(x*y)", target, line)
		}
	}
}
