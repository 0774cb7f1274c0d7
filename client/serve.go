// SPDX-License-Identifier: Apache-2.0

package client

import (
	"encoding/binary"
	"time"

	"phalanx"
	"phalanx/client/wire"
	"phalanx/internal/failpoint"
	"phalanx/kernels"
)

// serve does what the daemon asked for while the owner waits: it gives registered memory to healing members and starts or
// aborts staging. The state is whole here unless the page says otherwise.
func (c *Client) serve() {
	seat, n := c.page.ReadSeat()
	if n > 0 {
		for i := range wire.ServeCount {
			c.serveHeal(i, seat, c.torn)
		}
	}
	c.serveSave()
}

// serveHeal answers one place of D_SERVE. A request of another generation than the seat's is void: the donor has ended all
// serving for it.
func (c *Client) serveHeal(i int, seat wire.Seat, torn bool) {
	r, n := c.page.ReadServe(i)
	if done, _ := wire.ParseAnswer(c.page.Served(i)); n == 0 || r.Sequence <= done {
		return
	}
	status := wire.StatusFailed
	switch {
	case r.Generation != seat.Generation:
		status = wire.StatusRevoked
	case !c.applied.Valid || torn || c.heal.on:
	case r.Kind == wire.ServeKindDigests && r.Length >= int64(16*len(c.cfg.State)) && within(r.SegmentOffset, r.Length, len(c.m.Segment)):
		for k, d := range c.stateDigests() {
			binary.LittleEndian.PutUint64(c.m.Segment[r.SegmentOffset+int64(16*k):], d[0])
			binary.LittleEndian.PutUint64(c.m.Segment[r.SegmentOffset+int64(16*k)+8:], d[1])
		}
		status = wire.StatusOK
	case r.Kind == wire.ServeKindRead && c.inTensor(r.Tensor, r.Offset, r.Length) && within(r.SegmentOffset, r.Length, len(c.m.Segment)):
		copy(c.m.Segment[r.SegmentOffset:][:r.Length], c.cfg.State[r.Tensor].Data[r.Offset:])
		failpoint.Here("client-serving")
		status = wire.StatusOK
	}
	if status == wire.StatusFailed {
		c.log.Warn("heal request refused", "kind", r.Kind.String(), "tensor", r.Tensor, "offset", r.Offset, "length", r.Length, "valid", c.applied.Valid)
	}
	c.page.SetServed(i, wire.Answer(r.Sequence, status))
	c.m.Daemon.Ring()
}

// serveBeside is a planted bug: it answers while the owner is busy with the optimizer, until the returned function is called.
func (c *Client) serveBeside() (over func()) {
	stop, done := make(chan struct{}), make(chan struct{})
	go func() { // ends with over
		defer close(done)
		for {
			if seat, n := c.page.ReadSeat(); n > 0 {
				for i := range wire.ServeCount {
					c.serveHeal(i, seat, false)
				}
			}
			select {
			case <-stop:
				return
			case <-time.After(time.Millisecond):
			}
		}
	}()
	return func() { close(stop); <-done }
}

// within reports whether a range lies in memory of the given size, without overflow.
func within(offset, length int64, size int) bool {
	return offset >= 0 && length >= 0 && offset <= int64(size) && length <= int64(size)-offset
}

func (c *Client) inTensor(tensor int, offset, length int64) bool {
	return tensor >= 0 && tensor < len(c.cfg.State) && within(offset, length, len(c.cfg.State[tensor].Data))
}

// digestCache keeps the digests of the state of one label: several members may heal from it.
type digestCache struct {
	label   phalanx.Label
	digests []phalanx.Digest // nil: none
}

// stateDigests are the D1 digests with seed 0 of the registered tensors, in their order.
func (c *Client) stateDigests() []phalanx.Digest {
	if label := c.applied.Label(); c.digests.digests == nil || c.digests.label != label {
		c.digests = digestCache{label, make([]phalanx.Digest, len(c.cfg.State))}
		for i, t := range c.cfg.State {
			c.digests.digests[i] = kernels.TensorDigest(0, t)
		}
	}
	return c.digests.digests
}
