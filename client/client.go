// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"phalanx"
	"phalanx/client/wire"
)

// Client is the trainer's side of the control page. See the package for its order of calls and its threads.
type Client struct {
	process Process // none when attached to memory
	cfg     Config
	log     *slog.Logger
	plan    segmentPlan
	m       Memory
	page    *wire.Page
	slabs   []*wire.Slab // none: no staging
	closes  []func() error

	// What the owner knows of itself; the page has copies for others.
	applied    wire.Applied
	gradient   wire.Gradient // Step 0: none
	branch     uint64        // of the generation that made the gradient
	voted      wire.VoteRequest
	begun      Begin // Step 0: no step was begun
	begunSeat  wire.Seat
	torn       bool
	coordinate int // last told to Config.Coordinate, wire.AnyCoordinate before
	obeyed     uint64
	complained uint64 // count of the seat whose label was last logged as not fitting

	heal    heal
	staging *staging // nil: none runs
	answer  uint64   // sequence of the last D_SAVE that was answered
	digests digestCache
	fold    Fold

	daemonSeen time.Time // when a living daemon was last seen

	progressMu sync.Mutex // guards T_PROGRESS and T_WORK, which Progress and Working write from elsewhere too
	counter    uint64
	working    bool
}

// Attach returns a client over memory that exists already: the way of simulations and tests. Hello must not be called.
func Attach(cfg Config, m Memory) (*Client, error) {
	c := &Client{}
	infos, err := cfg.validate()
	if err != nil {
		return nil, fmt.Errorf("attach: %w", err)
	}
	if err := c.attach(cfg, infos, m); err != nil {
		return nil, fmt.Errorf("attach: %w", err)
	}
	return c, nil
}

// attach takes memory over and announces a fresh state, that of step 0.
func (c *Client) attach(cfg Config, infos []phalanx.TensorInfo, m Memory) error {
	c.cfg, c.log, c.m, c.page, c.plan = cfg, cfg.Logger, m, m.Page, planSegment(cfg)
	if int64(len(m.Segment)) < c.plan.bytes {
		return fmt.Errorf("segment of %d bytes, the trainer asked for %d", len(m.Segment), c.plan.bytes)
	}
	if c.m.Alive == nil {
		c.m.Alive = wire.Alive
	}
	if c.m.BoottimeNS == nil {
		c.m.BoottimeNS = wire.BoottimeNS
	}
	for _, memory := range m.Slabs {
		layout, err := wire.LayoutSlab(infos)
		if err != nil {
			return err
		}
		slab, err := wire.NewSlab(memory, layout)
		if err != nil {
			return err
		}
		c.slabs = append(c.slabs, slab)
	}
	c.coordinate, c.daemonSeen = wire.AnyCoordinate, time.Now()
	c.fold.c = c
	staged, _ := c.page.ReadStaged()
	c.answer = staged.Sequence

	c.writeGradient(wire.Gradient{})
	c.page.WriteHealing(wire.Healing{TrainerStart: m.TrainerStart})
	c.page.WriteApplying(wire.Applying{TrainerStart: m.TrainerStart})
	c.setApplied(wire.Applied{Coordinate: wire.AnyCoordinate, Valid: true})
	c.m.Daemon.Ring()
	return nil
}

// Close ends staging and unmaps everything. The client must not be used afterwards.
func (c *Client) Close() error {
	c.abortStaging()
	var err error
	for i := len(c.closes) - 1; i >= 0; i-- {
		err = errors.Join(err, c.closes[i]())
	}
	c.closes = nil
	return err
}

// Spec is the job's spec.
func (c *Client) Spec() phalanx.JobSpec { return c.cfg.Spec }

// Applied is the label of the registered state; ok is false while it possesses nothing.
func (c *Client) Applied() (label phalanx.Label, ok bool) {
	return c.applied.Label(), c.applied.Valid && !c.torn
}

// Extra is the part of the segment that Config.ExtraSegmentBytes reserved, and its offset for descriptors.
func (c *Client) Extra() (memory []byte, offset int64) {
	return c.m.Segment[c.plan.extra : c.plan.extra+c.cfg.ExtraSegmentBytes], c.plan.extra
}

// Preempt sets the page's preempt word: the daemon brings the member out of the world in order. The signal handler of
// Hello does the same for TERM and INT. It may be called from any goroutine.
func (c *Client) Preempt() {
	c.page.SetPreempt(1)
	c.m.Daemon.Ring()
}

// Working names the slot in work: a step and slot that kill two incarnations are poison.
func (c *Client) Working(step phalanx.Step, slot phalanx.Slot) {
	c.progressMu.Lock()
	defer c.progressMu.Unlock()
	c.working = true
	c.page.WriteWork(wire.Work{Step: step, Slot: slot, TrainerStart: c.m.TrainerStart, On: true})
	c.progress(wire.PhaseCompute, step)
}

// Progress tells the daemon that the trainer lives and what it does. Call it inside long work of other phases.
func (c *Client) Progress(phase wire.Phase) {
	c.progressMu.Lock()
	defer c.progressMu.Unlock()
	p, _ := c.page.ReadProgress()
	c.progress(phase, p.Step)
}

// enter says that the owner is in a phase of the library's own, in which no slot is in work.
func (c *Client) enter(phase wire.Phase, step phalanx.Step) {
	c.progressMu.Lock()
	defer c.progressMu.Unlock()
	if c.working {
		c.working = false
		w, _ := c.page.ReadWork()
		w.On = false
		c.page.WriteWork(w)
	}
	c.progress(phase, step)
}

func (c *Client) progress(phase wire.Phase, step phalanx.Step) {
	c.counter++
	c.page.WriteProgress(wire.Progress{Phase: phase, Step: step, Counter: c.counter, BoottimeNS: c.m.BoottimeNS()})
}

func (c *Client) setApplied(a wire.Applied) {
	a.TrainerStart = c.m.TrainerStart
	c.applied = a
	c.page.WriteApplied(a)
}

func (c *Client) writeGradient(g wire.Gradient) {
	g.TrainerStart = c.m.TrainerStart
	c.gradient = g
	c.page.WriteGradient(g)
}

// wait serves the daemon's requests and calls look after every ring, until look says that the wait is over. look must read
// the page anew each time; again asks to look once more at once, because something was done that may allow more.
func (c *Client) wait(ctx context.Context, look func() (over, again bool, err error)) error {
	rung := make(chan struct{})
	stop := context.AfterFunc(ctx, func() { // the owner waits on one word, so the context rings it too
		defer close(rung)
		c.m.Own.Ring()
	})
	defer func() {
		if !stop() {
			<-rung // the bell may be unmapped once the owner goes on
		}
	}()
	for {
		seen := c.m.Own.Count()
		if err := ctx.Err(); err != nil {
			return context.Cause(ctx)
		}
		c.serve()
		over, again, err := look()
		if over || err != nil {
			return err
		}
		if again {
			continue
		}
		if c.m.Own.Wait(seen, waitSlice) == seen {
			if err := c.checkDaemon(); err != nil {
				return err
			}
		}
	}
}

// checkDaemon looks for a living daemon after a silent slice; the page names the present one.
func (c *Client) checkDaemon() error {
	id, n := c.page.ReadIdentity()
	now := time.Now()
	if n > 0 && c.m.Alive(id.DaemonPID, id.DaemonStart) {
		c.daemonSeen = now
		return nil
	}
	if silent := now.Sub(c.daemonSeen); silent >= OrphanAfter {
		return fmt.Errorf("daemon %d of %s is gone for %s; start phalanx run again: %w", id.DaemonPID, id.Member, silent.Round(time.Second), ErrOrphaned)
	}
	return nil
}
