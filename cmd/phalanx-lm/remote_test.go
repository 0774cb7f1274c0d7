// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"phalanx"
	"phalanx/client"
	"phalanx/client/wire"
	"phalanx/kernels"
)

// daemon plays the daemon of a world of one on a page in memory.
type daemon struct {
	t      *testing.T
	page   *wire.Page
	own    wire.Bell
	member wire.Bell // the trainer's
	memory []byte
	slots  int
	last   phalanx.Step
	// ends says how the reduction of a step ends at the given attempt, counted from 0.
	ends func(step phalanx.Step, attempt int) wire.Status

	generation phalanx.Generation
	reduced    uint64 // descriptors completed
	voted      uint64 // votes answered
	attempt    int    // at the step after the applied one
	step       phalanx.Step
	stopped    bool
}

func newDaemon(t *testing.T, slots int, last phalanx.Step) *daemon {
	const segment = 8 << 20 // plenty for twelve slots
	d := &daemon{
		t: t, page: wire.NewPage(0, 1), own: wire.NewLocalBell(), member: wire.NewLocalBell(),
		memory: kernels.Bytes(make([]int64, segment/8)), slots: slots, last: last,
	}
	d.reseat(wire.ActionRun)
	return d
}

// reseat begins a generation on the state that the trainer has.
func (d *daemon) reseat(action wire.Action) {
	d.generation = d.generation.Next()
	seat := wire.Seat{
		Generation: d.generation, Action: action, World: 1, GroupSize: 1, SlotEnd: phalanx.Slot(d.slots), SlotCount: d.slots,
		LocalWorld: 1, LastStep: d.last,
	}
	if applied, n := d.page.ReadApplied(); n > 0 {
		seat.ResumeStep, seat.ResumeGeneration, seat.ResumeDigest = applied.Step, applied.Generation, applied.Digest
	}
	d.page.WriteSeat(seat)
	d.member.Ring()
}

// serve runs until the context ends.
func (d *daemon) serve(ctx context.Context) {
	stop := context.AfterFunc(ctx, d.own.Ring)
	defer stop()
	for ctx.Err() == nil {
		seen := d.own.Count()
		d.look()
		d.own.Wait(seen, time.Second)
	}
}

func (d *daemon) look() {
	applied, _ := d.page.ReadApplied()
	if next := applied.Step + 1; next != d.step {
		d.step, d.attempt = next, 0
	}
	if vote, n := d.page.ReadVoteRequest(); n > d.voted {
		d.voted = n
		if vote.OK {
			d.page.WriteCommit(wire.Commit{Generation: vote.Generation, Step: vote.Step})
			d.member.Ring()
		} else {
			d.reseat(wire.ActionRun)
		}
	}
	for d.reduced < d.page.RingHead() {
		d.reduced++
		d.reduce(d.page.ReadDescriptor(d.reduced))
	}
	if done, n := d.page.ReadDone(); n > 0 && done.Step == d.last && !d.stopped {
		d.stopped = true
		d.reseat(wire.ActionStop)
	}
}

func (d *daemon) reduce(c wire.Descriptor) {
	status := wire.StatusOK
	if d.ends != nil {
		status = d.ends(d.step, d.attempt)
	}
	d.attempt++
	if c.InNodes != 1 || c.Scale != wire.ScaleMean {
		d.t.Errorf("descriptor %+v, want the mean of one node", c)
	}
	size := 4 * c.Count
	in, out := d.memory[c.InOffset:c.InOffset+size], d.memory[c.OutOffset:c.OutOffset+size]
	kernels.ScaleF32(kernels.F32s(out), kernels.F32s(in), 1/float32(d.slots))
	d.page.CompleteDescriptor(c.Sequence, status)
	if status == wire.StatusRevoked {
		d.reseat(wire.ActionRun)
	}
	d.member.Ring()
}

// attached is a session over the daemon's memory instead of its socket.
type attached struct {
	remote
	daemon *daemon
}

func (a *attached) hello(_ context.Context, r registration) error {
	c, err := client.Attach(client.Config{
		Spec: r.spec, State: r.state, GradientElements: r.elements, Apply: r.apply, Logger: a.log,
	}, client.Memory{
		Page: a.daemon.page, Own: a.daemon.member, Daemon: a.daemon.own, Segment: a.daemon.memory, TrainerStart: 1,
		Alive: func(int, uint64) bool { return true },
	})
	a.client = c
	return err
}

// trainUnder runs the golden job through the client.
func trainUnder(t *testing.T, ends func(phalanx.Step, int) wire.Status) (out string, log string) {
	t.Helper()
	j := testJob(t, goldenSteps)
	d := newDaemon(t, j.spec.Slots, goldenSteps)
	d.ends = ends
	ctx, cancel := context.WithCancel(t.Context())
	var group sync.WaitGroup
	group.Go(func() { d.serve(ctx) })
	defer group.Wait()
	defer cancel()

	var stdout, stderr bytes.Buffer
	s := &attached{remote: remote{log: slog.New(slog.NewTextHandler(&stderr, nil))}, daemon: d}
	if err := newTrainer(j, s, &stdout).run(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := s.close(); err != nil {
		t.Error(err)
	}
	done, _ := d.page.ReadDone()
	if want := fmt.Sprintf("final step=%d digest=%s\n", done.Step, done.Digest); stdout.String() != want {
		t.Errorf("printed %q, told the daemon %q", &stdout, want)
	}
	return stdout.String(), stderr.String()
}

func TestClientGivesTheGoldenDigest(t *testing.T) {
	if out, _ := trainUnder(t, nil); !strings.Contains(out, golden) {
		t.Errorf("printed %q, want %s", out, golden)
	}
}

// Reductions that are revoked, or fail and are voted against, are repeated without a trace in the bits.
func TestClientRepeatsSteps(t *testing.T) {
	out, log := trainUnder(t, func(step phalanx.Step, attempt int) wire.Status {
		switch {
		case step%4 == 0 && attempt < 2:
			return wire.StatusRevoked
		case step%5 == 0 && attempt < 3:
			return wire.StatusFailed
		}
		return wire.StatusOK
	})
	if !strings.Contains(out, golden) {
		t.Errorf("printed %q, want %s", out, golden)
	}
	if !strings.Contains(log, "reduction failed") {
		t.Errorf("the log does not name the failed reductions: %s", log)
	}
}
