// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"strings"
	"testing"
	"time"
)

func TestProgressLine(t *testing.T) {
	for _, c := range []struct {
		done, total int64
		took        time.Duration
		want        string
	}{
		{0, 0, 0, "read 0 B of 0 B"},
		{1 << 20, 4 << 20, 100 * time.Millisecond, "read 1.0 MiB of 4.0 MiB (25%)"},
		{1 << 30, 4 << 30, 2 * time.Second, "read 1.0 GiB of 4.0 GiB (25%), 512.0 MiB/s, 6s left"},
		{3 << 40, 3 << 40, time.Hour, "read 3.0 TiB of 3.0 TiB (100%), 873.8 MiB/s, 0s left"},
		{1023, 1 << 50, time.Second, "read 1023 B of 1.0 PiB (0%), 1023 B/s, "},
	} {
		if got := progressLine("read", c.done, c.total, c.took); !strings.HasPrefix(got, c.want) {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
}

// TestProgressIsForTerminals: what goes into a file or a pipe has no progress in it.
func TestProgressIsForTerminals(t *testing.T) {
	var errs bytes.Buffer
	a := app{stderr: &errs}
	p := a.progress("read")
	p.update(1, 2)
	p.end()
	if errs.Len() > 0 {
		t.Errorf("%q", errs.String())
	}
}
