// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// defaultData returns the Go source tree: text that every machine with a Go toolchain has. It runs the go command only when
// the tree is in none of the usual places.
func defaultData(ctx context.Context) (string, error) {
	candidates := []string{os.Getenv("GOROOT"), "/usr/local/go", "/usr/lib/go", "/usr/lib/golang"}
	path, err := exec.LookPath("go")
	if err == nil {
		// GOROOT/bin/go, often behind a link.
		if real, err := filepath.EvalSymlinks(path); err == nil {
			candidates = append(candidates, filepath.Dir(filepath.Dir(real)))
		}
	}
	for _, root := range candidates {
		if src, ok := sourceTree(root); ok {
			return src, nil
		}
	}
	if path != "" {
		ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
		defer cancel()
		if root, err := exec.CommandContext(ctx, path, "env", "GOROOT").Output(); err == nil {
			if src, ok := sourceTree(strings.TrimSpace(string(root))); ok {
				return src, nil
			}
		}
	}
	return "", errors.New("no Go source tree found to train on; set GOROOT, or give a directory of text with --data DIR")
}

func sourceTree(root string) (string, bool) {
	if root == "" {
		return "", false
	}
	src := filepath.Join(root, "src")
	// A distribution may ship the tools without the source.
	_, err := os.Stat(filepath.Join(src, "runtime", "proc.go"))
	return src, err == nil
}
