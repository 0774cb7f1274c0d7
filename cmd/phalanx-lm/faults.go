// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"phalanx"
)

// faults are planted failures, for tests of what a job does about them. The zero value plants none. Each process has them
// anew: a trainer that is started again fails again at the same place.
type faults struct {
	dieAt        poison
	exit0At      phalanx.Step // 0: never
	flipAt       phalanx.Step // 0: never
	slowApply    time.Duration
	slowStart    time.Duration
	crashAtStart bool
	noHello      bool
	exitCode     int // -1: not given
}

// poison is a slot whose samples kill the process that computes them. Step 0 is nowhere.
type poison struct {
	step phalanx.Step
	slot phalanx.Slot
}

func (p *poison) String() string {
	if p == nil || p.step == 0 {
		return ""
	}
	return fmt.Sprintf("%d:%d", p.step, p.slot)
}

// Set reads STEP:SLOT.
func (p *poison) Set(s string) error {
	left, right, _ := strings.Cut(s, ":")
	step, err1 := strconv.ParseUint(left, 10, 64)
	slot, err2 := strconv.ParseUint(right, 10, 31)
	if err1 != nil || err2 != nil || step == 0 {
		return fmt.Errorf("want STEP:SLOT, steps from 1, slots from 0")
	}
	p.step, p.slot = phalanx.Step(step), phalanx.Slot(slot)
	return nil
}

// onStart runs before anything else is done.
func (f *faults) onStart(ctx context.Context) {
	time.Sleep(f.slowStart)
	switch {
	case f.crashAtStart:
		os.Exit(f.code(1))
	case f.noHello:
		fmt.Fprintln(os.Stderr, "phalanx-lm: not registering, as --fault-no-hello says")
		<-ctx.Done()
		os.Exit(f.code(exitPreempted))
	case f.exitCode >= 0 && f.exit0At == 0:
		os.Exit(f.exitCode)
	}
}

// onStep runs when a step begins.
func (f *faults) onStep(step phalanx.Step) {
	if f.exit0At != 0 && step == f.exit0At {
		os.Exit(f.code(0))
	}
}

// onSlot runs when a slot is about to be computed.
func (f *faults) onSlot(step phalanx.Step, slot phalanx.Slot) {
	if f.dieAt.step == 0 || f.dieAt != (poison{step, slot}) {
		return
	}
	if err := syscall.Kill(os.Getpid(), syscall.SIGKILL); err != nil {
		os.Exit(137)
	}
	select {} // the signal is on its way to this very thread or another; nothing more may happen
}

// onDigest runs when a gradient was digested, and may change what is voted for.
func (f *faults) onDigest(step phalanx.Step, digest phalanx.Digest) phalanx.Digest {
	if f.flipAt != 0 && step == f.flipAt {
		f.flipAt = 0
		digest[0] ^= 1
	}
	return digest
}

// onApply runs inside the optimizer, before it changes anything.
func (f *faults) onApply() { time.Sleep(f.slowApply) }

func (f *faults) code(otherwise int) int {
	if f.exitCode >= 0 {
		return f.exitCode
	}
	return otherwise
}
