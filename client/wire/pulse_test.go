// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

const pulseVariable = "PHALANX_TEST_PULSE"

// TestPulseChild is the process that TestPulse kills.
func TestPulseChild(t *testing.T) {
	path := os.Getenv(pulseVariable)
	if path == "" {
		return // not started by TestPulse
	}
	p, err := OpenPage(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := StartPulse(p); err != nil {
		t.Fatal(err)
	}
	time.Sleep(time.Minute) // until it is killed
	t.Fatal("was not killed")
}

func TestPulse(t *testing.T) {
	path := filepath.Join(t.TempDir(), "page")
	p, err := CreatePage(path, 0, 1)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := p.Unmap(); err != nil {
			t.Error(err)
		}
	}()
	child := exec.Command(os.Args[0], "-test.run=^TestPulseChild$")
	child.Env = append(os.Environ(), pulseVariable+"="+path)
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = child.Wait() }() // was killed
	for end := time.Now().Add(20 * time.Second); !p.HasPulse(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the child gives no pulse")
		}
	}
	p.WaitPulse(time.Millisecond)
	if p.PulseEnded() {
		t.Fatal("the child lives and its pulse has ended")
	}
	woken := make(chan struct{})
	go func() {
		defer close(woken)
		p.WaitPulse(time.Minute)
	}()
	if err := child.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	select {
	case <-woken:
	case <-time.After(20 * time.Second):
		t.Fatal("the end of the child woke nobody")
	}
	if !p.PulseEnded() || !p.HasPulse() {
		t.Fatalf("the child was killed: pulse %#x", p.Pulse())
	}
}

func TestPulseIsTakenBack(t *testing.T) {
	path := filepath.Join(t.TempDir(), "page")
	p, err := CreatePage(path, 0, 1)
	if err != nil {
		t.Fatal(err)
	}
	if p.HasPulse() {
		t.Fatal("a page has a pulse before anybody gave it one")
	}
	for range 3 {
		end, err := StartPulse(p)
		if err != nil {
			t.Fatal(err)
		}
		if !p.HasPulse() || p.PulseEnded() {
			t.Fatalf("pulse %#x", p.Pulse())
		}
		if err := end(); err != nil {
			t.Fatal(err)
		}
		if p.HasPulse() || p.PulseEnded() {
			t.Fatalf("pulse %#x after it was taken back", p.Pulse())
		}
		p.WaitPulse(time.Minute) // returns at once
	}
	if err := p.Unmap(); err != nil {
		t.Fatal(err)
	}
}
