// SPDX-License-Identifier: Apache-2.0

package host

import (
	"fmt"

	"phalanx"
)

// The halving exchange passes sums that exist in no segment. Between hosts they are frames; inside a host they go through
// a mailbox on the sender's board: mailSlots payloads that the sender fills in turn and the receiver acknowledges on its
// own board, in a word for each kind of partnership, since each operation meets a partner in one of them only.
//
// The words of a slot: progress(stamp, index of the message + 1), receiver's rank + 1, bytes. The first is 0 while the
// others change.
const (
	mailSlots = 2

	mailIndex = 0
	mailTo    = 1
	mailBytes = 2
)

func (b board) slot(s int) (words int, payload []byte) {
	return wordMail + s*mailWords, b.mail[s*maxPayload:][:maxPayload]
}

// channel is the pair of message streams with one partner for one operation.
type channel struct {
	w       *worker
	m       *member
	index   int // of the partnership: which acknowledgement word it uses
	sent    int
	got     int
	waiting []*frame // from another host, not taken yet
	acked   uint64   // by another host
}

// outbox remembers what lies in the slots of the own mailbox.
type outbox struct {
	next  int
	slots [mailSlots]struct {
		to    *channel
		count int // acknowledged once the receiver has taken so many
	}
}

// send passes a message of at most maxPayload bytes on, or reports that there is no room yet.
func (c *channel) send(out *outbox, b []byte) bool {
	if c.m.peer != nil {
		if uint64(c.sent) >= c.acked+window {
			return false
		}
		h := c.w.head(frameData)
		h.stream, h.chunk = streamPartial, uint64(c.sent)
		f := newData(h, len(b))
		copy(f.data(), b)
		c.m.peer.link.send(f)
		c.sent++
		return true
	}
	s := out.next % mailSlots
	if prior := &out.slots[s]; prior.to != nil && prior.to.taken() < prior.count {
		return false
	}
	own := c.w.board
	words, payload := own.slot(s)
	own.store(words+mailIndex, 0)
	copy(payload, b)
	own.store(words+mailTo, uint64(c.m.rank)+1)
	own.store(words+mailBytes, uint64(len(b)))
	c.sent++
	own.store(words+mailIndex, progress(c.w.stamp, c.sent))
	out.slots[s].to, out.slots[s].count = c, c.sent
	out.next++
	c.ring()
	return true
}

// taken is how many messages the partner on this host has taken.
func (c *channel) taken() int {
	return counted(c.m.local.board.load(wordAcks+c.index), c.w.stamp)
}

func (c *channel) ring() {
	if c.m.local.board.load(wordSleeping) != 0 {
		c.m.local.ring()
	}
}

// receive copies the next message to dst, which has exactly its length; false when it is not here yet.
func (c *channel) receive(dst []byte) (bool, error) {
	if c.m.peer != nil {
		return c.receiveFrame(dst)
	}
	b := c.m.local.board
	want := progress(c.w.stamp, c.got+1)
	for s := range mailSlots {
		words, payload := b.slot(s)
		if b.load(words+mailIndex) != want || b.load(words+mailTo) != uint64(c.w.f.self.Rank)+1 {
			continue
		}
		n := b.load(words + mailBytes)
		if b.load(words+mailIndex) != want {
			continue // the slot was turned over to us between the two looks and is not full yet
		}
		if n != uint64(len(dst)) {
			return false, c.wrong(int64(n), len(dst))
		}
		copy(dst, payload)
		if err := c.w.still(c.m); err != nil {
			return false, err
		}
		c.got++
		c.w.board.store(wordAcks+c.index, progress(c.w.stamp, c.got))
		c.ring()
		return true, nil
	}
	return false, c.w.still(c.m)
}

func (c *channel) receiveFrame(dst []byte) (bool, error) {
	if len(c.waiting) == 0 {
		return false, nil
	}
	f := c.waiting[0]
	if f.stream != streamPartial || f.chunk != uint64(c.got) || int(f.payload) != len(dst) {
		return false, c.wrong(int64(f.payload), len(dst))
	}
	copy(dst, f.data())
	f.free()
	c.waiting[0] = nil
	c.waiting = c.waiting[1:]
	c.got++
	c.w.ack(c.m.peer, streamPartial, c.got)
	return true, nil
}

func (c *channel) wrong(got int64, want int) error {
	return fmt.Errorf("rank %d sent %d bytes as message %d, want %d: %w", c.m.rank, got, c.got, want, ErrPeer)
}

// refresh takes in what arrived from another host.
func (c *channel) refresh() {
	if c.m.peer == nil {
		return
	}
	frames, acked := c.w.take(c.m.peer)
	c.waiting = append(c.waiting, frames...)
	c.acked = acked[streamPartial]
}

// exchange sends some buffers and receives others, both in order, until all have passed. Either may be empty.
func (c *channel) exchange(out *outbox, give, want [][]byte) error {
	g, t := newCursor(give), newCursor(want)
	return c.w.drive(func() (state, error) {
		c.refresh()
		s := stuck
		if b := g.peek(); b != nil && c.send(out, b) {
			g.skip()
			s = moved
		}
		if b := t.peek(); b != nil {
			ok, err := c.receive(b)
			if err != nil {
				return stuck, err
			}
			if ok {
				t.skip()
				s = moved
			}
		}
		if g.peek() == nil && t.peek() == nil {
			return finished, nil
		}
		return s, nil
	}, func() []phalanx.Rank { return []phalanx.Rank{c.m.rank} })
}

// cursor walks over buffers in messages of at most maxPayload bytes.
type cursor struct {
	buffers [][]byte
	off     int
}

func newCursor(buffers [][]byte) *cursor {
	c := &cursor{buffers: buffers}
	c.settle()
	return c
}

// peek returns the next message, nil at the end.
func (c *cursor) peek() []byte {
	if len(c.buffers) == 0 {
		return nil
	}
	b := c.buffers[0][c.off:]
	return b[:min(len(b), maxPayload)]
}

func (c *cursor) skip() {
	c.off += len(c.peek())
	c.settle()
}

func (c *cursor) settle() {
	for len(c.buffers) > 0 && c.off >= len(c.buffers[0]) {
		c.buffers, c.off = c.buffers[1:], 0
	}
}
