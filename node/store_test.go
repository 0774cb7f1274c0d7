// SPDX-License-Identifier: Apache-2.0

package node

import (
	"os"
	"path/filepath"
	"testing"

	"phalanx/ckpt"
)

func TestOpenStore(t *testing.T) {
	dir := t.TempDir()
	for _, url := range []string{filepath.Join(dir, "a"), "file://" + filepath.Join(dir, "b")} {
		s, err := OpenStore(url)
		if err != nil {
			t.Errorf("%s: %v", url, err)
			continue
		}
		if records, problems, err := ckpt.List(t.Context(), s, "job"); len(records)+len(problems) != 0 || err != nil {
			t.Errorf("%s: a new store has %v, %v, %v", url, records, problems, err)
		}
	}
	taken := filepath.Join(dir, "file")
	if err := os.WriteFile(taken, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, url := range []string{"", "file://", "s3://bucket/x", "://x", filepath.Join(taken, "below")} {
		if _, err := OpenStore(url); err == nil {
			t.Errorf("%q is opened", url)
		}
	}
}
