// SPDX-License-Identifier: Apache-2.0

package host

import (
	"fmt"
	"slices"
	"time"

	"phalanx"
)

// deliver takes a frame of another host. It never blocks.
func (c *courier) deliver(from phalanx.Rank, f *frame) {
	c.mu.Lock()
	keep := !c.ended
	switch {
	case !keep:
	case f.typ == frameOffer:
		keep = false
		if len(c.offers) < maxKept {
			c.offers[offerKey{laneKey{from, f.id}, f.word, f.chunk}] = message{f.seq, int64(f.node)<<32 | int64(f.stream)}
		} else if c.broken[from] == nil {
			c.broken[from] = fmt.Errorf("%d messages were offered and are not wanted: %w", len(c.offers), ErrPeer)
		}
	default:
		c.frames = append(c.frames, arrived{from, f})
	}
	c.mu.Unlock()
	if !keep {
		f.free()
	}
	c.ping()
}

func (c *courier) linkBroken(rank phalanx.Rank, err error) {
	c.mu.Lock()
	if c.broken[rank] == nil {
		c.broken[rank] = fmt.Errorf("link: %v: %w", err, ErrPeer)
	}
	c.mu.Unlock()
	c.ping()
}

// sendChunk sends a chunk to another host, when there is credit.
func (c *courier) sendChunk(l *letter) (finished, moved bool, err error) {
	total := int((l.bytes + maxPayload - 1) / maxPayload)
	if !l.taken || l.chunks < total && uint64(l.chunks) >= l.credit {
		return false, false, nil
	}
	if l.chunks < total {
		at := int64(l.chunks) * maxPayload
		b := c.f.self.Segment[l.op.InOffset+at:][:min(maxPayload, l.bytes-at)]
		h := c.head(l, frameMessage, uint32(l.op.Seq))
		h.chunk = uint64(l.chunks)
		f := newData(h, len(b))
		copy(f.data(), b)
		l.peer.peer.link.send(f)
		l.chunks++
	}
	return l.chunks == total, true, nil
}

// receive takes the offer of another host. The chunks come to take.
func (c *courier) receive(l *letter) (finished, moved bool, err error) {
	if l.taken {
		return l.copied == l.bytes, false, nil
	}
	key := offerKey{laneKey{l.op.Peer, l.w.id}, l.op.Tag, l.order}
	c.mu.Lock()
	m, ok := c.offers[key]
	delete(c.offers, key)
	c.mu.Unlock()
	if !ok {
		return false, false, nil
	}
	l.taken, l.seq = true, m.seq
	h := c.head(l, frameTake, m.seq)
	h.chunk = window
	if m.bytes != l.bytes {
		h.stream, err = 1, errSizes
	}
	l.peer.peer.link.send(&frame{header: h})
	return l.bytes == 0 && err == nil, true, err
}

// take deals with a frame of another host. One that belongs to no letter is of one that has ended.
func (c *courier) take(a arrived) {
	defer a.f.free()
	for _, l := range c.letters {
		switch {
		case l.op.Peer != a.from || l.w.id != a.f.id || l.near != nil:
		case a.f.typ == frameTake && l.op.Kind == Send && uint32(l.op.Seq) == a.f.seq:
			l.taken, l.credit = true, max(l.credit, a.f.chunk)
			if a.f.stream != 0 {
				c.refused(l)
			}
			return
		case a.f.typ == frameMessage && l.op.Kind == Recv && l.taken && l.seq == a.f.seq:
			c.put(l, a.f)
			return
		}
	}
}

// refused ends a send of another size than the receiver wants: there is nobody to send to.
func (c *courier) refused(l *letter) {
	c.letters = slices.DeleteFunc(c.letters, func(o *letter) bool { return o == l })
	c.close(l, errSizes)
}

// put copies a chunk of another host. One that is not the next is dropped, and the letter ends with its deadline or its link.
func (c *courier) put(l *letter, f *frame) {
	at := int64(l.chunks) * maxPayload
	n := min(maxPayload, l.bytes-at)
	if f.chunk != uint64(l.chunks) || int64(f.payload) != n || n <= 0 {
		c.linkBroken(l.op.Peer, fmt.Errorf("%d bytes of chunk %d, want %d of chunk %d", f.payload, f.chunk, n, l.chunks))
		return
	}
	copy(c.f.self.Segment[l.op.OutOffset+at:][:n], f.data())
	l.chunks++
	l.copied += n
	l.since = time.Now()
	if l.copied < l.bytes {
		h := c.head(l, frameTake, l.seq)
		h.chunk = uint64(l.chunks) + window
		l.peer.peer.link.send(&frame{header: h})
	}
}
