// SPDX-License-Identifier: Apache-2.0

package client

import (
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"phalanx/client/wire"
	"phalanx/internal/failpoint"
)

// stageChunk is how many bytes are copied between two looks at an abort.
const stageChunk = 4 << 20

// staging is one copy of the state into a slab. Its goroutine is the only writer of the slab and of T_STAGED until done
// is closed; the owner starts it, and joins it before the state changes.
type staging struct {
	sequence uint64
	slab     *wire.Slab
	abort    atomic.Bool
	done     chan struct{} // closed at the end
}

// serveSave looks at D_SAVE. A save of a later step waits until that step is applied, one of an earlier step was missed.
func (c *Client) serveSave() {
	if c.staging != nil {
		select {
		case <-c.staging.done:
			c.staging = nil
		default:
		}
	}
	save, n := c.page.ReadSave()
	if n == 0 || save.Sequence < c.answer {
		return
	}
	if c.staging != nil {
		// An abort, or another save, for which the daemon gave this one up.
		if save.Abort || save.Sequence != c.staging.sequence {
			c.staging.abort.Store(true)
		}
		if save.Sequence != c.staging.sequence {
			c.joinStaging()
		}
	}
	if save.Sequence <= c.answer {
		return
	}
	switch {
	case save.Abort || len(c.slabs) == 0 || c.torn || !c.applied.Valid || c.applied.Step > save.Step:
		c.answer = save.Sequence
		c.page.WriteStaged(wire.Staged{Sequence: save.Sequence, Step: save.Step})
		c.m.Daemon.Ring()
	case c.applied.Step == save.Step:
		c.answer = save.Sequence
		c.staging = &staging{sequence: save.Sequence, slab: c.slabs[wire.SlabOf(save.Sequence, len(c.slabs))], done: make(chan struct{})}
		go c.stage(c.staging, c.applied)
	}
}

// stage copies every tensor and answers the save. It runs beside the owner's computation and reads the state only.
func (c *Client) stage(s *staging, applied wire.Applied) {
	defer close(s.done)
	header := wire.SlabHeader{
		LabelGeneration: applied.Generation, LabelStep: applied.Step, LabelDigest: applied.Digest, Coordinate: applied.Coordinate,
		Sequence: s.sequence, State: wire.SlabStateFilling, LayoutHash: s.slab.Layout().Hash,
	}
	s.slab.WriteHeader(header)
	ok := c.copyState(s, copiers(runtime.GOMAXPROCS(0)))
	header.State = wire.SlabStateFull
	if !ok {
		header.State = wire.SlabStateFree
	}
	s.slab.WriteHeader(header)
	failpoint.Here("client-staged")
	c.page.WriteStaged(wire.Staged{Sequence: s.sequence, Step: applied.Step, OK: ok, Generation: applied.Generation, Digest: applied.Digest, Coordinate: applied.Coordinate})
	c.m.Daemon.Ring()
	c.m.Own.Ring() // Finish waits for it
}

// copiers is how many goroutines copy: one core reaches a fraction of what memory gives, and the trainer is left the half of its
// processors. Beyond four it gives little.
func copiers(processors int) int { return min(max(processors/2, 1), 4) }

// copyState copies every tensor, and reports whether it came to the end.
func (c *Client) copyState(s *staging, copiers int) bool {
	type piece struct{ from, to []byte }
	var pieces []piece
	for i := range c.cfg.State {
		from, to := c.cfg.State[i].Data, s.slab.Tensor(i)
		for len(to) > 0 {
			n := min(len(to), stageChunk)
			pieces = append(pieces, piece{from[:n], to[:n]})
			from, to = from[n:], to[n:]
		}
	}
	var next atomic.Int64
	var group sync.WaitGroup
	for range copiers {
		group.Go(func() {
			for k := next.Add(1) - 1; k < int64(len(pieces)) && !s.abort.Load(); k = next.Add(1) - 1 {
				copy(pieces[k].to, pieces[k].from)
				failpoint.Here("client-staging")
			}
		})
	}
	group.Wait()
	return !s.abort.Load()
}

// joinStaging returns when no staging runs. It ends after at most one copy of the state, sooner when the daemon aborts.
func (c *Client) joinStaging() {
	if c.staging == nil {
		return
	}
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-c.staging.done:
			c.staging = nil
			return
		case <-tick.C:
			if save, _ := c.page.ReadSave(); save.Sequence == c.staging.sequence && save.Abort {
				c.staging.abort.Store(true)
			}
		}
	}
}

// abortStaging ends staging without its result.
func (c *Client) abortStaging() {
	if c.staging != nil {
		c.staging.abort.Store(true)
		c.joinStaging()
	}
}
