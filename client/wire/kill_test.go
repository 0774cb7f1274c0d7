// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"phalanx"
)

// A process that writes a cell as fast as it can is killed again and again by the kernel; each successor goes on, and no
// reader, and no successor, ever sees a mixed payload.
func TestWriterProcessKilled(t *testing.T) {
	if path := os.Getenv("WIRE_TEST_PAGE"); path != "" {
		writeUntilKilled(t, path)
		return
	}
	path := filepath.Join(t.TempDir(), "page")
	p, err := CreatePage(path, 0, 1)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = p.Unmap() }()
	last := uint64(0)
	for kill := range 6 {
		child := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestWriterProcessKilled$", "-test.timeout=30s")
		child.Env = append(os.Environ(), "WIRE_TEST_PAGE="+path)
		if err := child.Start(); err != nil {
			t.Fatal(err)
		}
		for from, end := last, time.Now().Add(20*time.Second); last < from+1000+uint64(kill); {
			last = checkSeat(t, p, last)
			if time.Now().After(end) {
				t.Error("the child writes nothing")
				break
			}
		}
		if err := child.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = child.Wait() // killed, as wanted
		last = checkSeat(t, p, last)
	}
}

func checkSeat(t *testing.T, p *Page, last uint64) uint64 {
	t.Helper()
	v, n := p.ReadSeat()
	if n < last || n > 0 && (v.Branch != n || v.LastStep != phalanx.Step(n) || v.ResumeDigest[1] != n || v.Generation.Number != n) {
		t.Fatalf("count %d after %d, payload %+v", n, last, v)
	}
	return n
}

func writeUntilKilled(t *testing.T, path string) {
	p, err := OpenPage(path)
	if err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(25 * time.Second); time.Now().Before(end); {
		_, n := p.ReadSeat()
		for range 1000 {
			n++
			p.WriteSeat(Seat{Branch: n, LastStep: phalanx.Step(n), ResumeDigest: phalanx.Digest{0, n}, Generation: phalanx.Generation{Number: n}})
		}
	}
}
