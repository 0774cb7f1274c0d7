// SPDX-License-Identifier: Apache-2.0

package host

import (
	"fmt"

	"phalanx"
)

// begin publishes a message.
func (c *courier) begin(l *letter) {
	switch {
	case l.op.Kind == Recv:
	case l.near == nil:
		h := c.head(l, frameOffer, uint32(l.op.Seq))
		h.chunk, h.word, h.node, h.stream = l.order, l.op.Tag, uint16(l.bytes>>32), uint32(l.bytes)
		l.peer.peer.link.send(&frame{header: h})
	default:
		place := int((l.op.Seq - 1) % courierPlaces)
		l.entry = courierEntries + place*entryWords
		l.serial = stampOf(c.f.gen, uint32(l.op.Seq))
		c.area.store(l.entry+entrySerial, 0)
		c.area.store(l.entry+entryTo, uint64(l.op.Peer)+1)
		c.area.store(l.entry+entryGroup, l.w.id)
		c.area.store(l.entry+entryTag, l.op.Tag)
		c.area.store(l.entry+entryOrder, l.order)
		c.area.store(l.entry+entryOffset, uint64(l.op.InOffset))
		c.area.store(l.entry+entryBytes, uint64(l.bytes))
		c.area.store(l.entry+entrySerial, l.serial)
		l.near.rouse()
	}
}

// rouse rings a neighbour whose courier sleeps.
func (n *neighbour) rouse() {
	if n.area.load(courierSleeping) != 0 {
		n.ring()
	}
}

// ackWord is where the receiver of a message on this host acknowledges it.
func ackWord(sender, entry int) int {
	return courierAcks + sender*courierPlaces + (entry-courierEntries)/entryWords
}

var errSizes = fmt.Errorf("the sizes of the message differ: %w", ErrMismatch)

// awaitAck looks whether the neighbour has copied the message.
func (c *courier) awaitAck(l *letter) (finished, moved bool, err error) {
	switch l.near.area.load(ackWord(c.index, l.entry)) {
	case l.serial:
		return true, true, nil
	case ^l.serial:
		return false, false, errSizes
	}
	return false, false, nil
}

// copyLetter finds the neighbour's message and copies a chunk of it.
func (c *courier) copyLetter(l *letter) (finished, moved bool, err error) {
	area := l.near.area
	if l.serial == 0 {
		if !c.findEntry(l) {
			return false, false, nil
		}
		if int64(area.load(l.entry+entryBytes)) != l.bytes || l.from < 0 || l.from > int64(len(l.near.segment))-l.bytes {
			c.area.store(ackWord(l.near.index, l.entry), ^l.serial)
			l.near.rouse()
			return false, false, errSizes
		}
	}
	n := min(maxPayload, l.bytes-l.copied)
	copy(c.f.self.Segment[l.op.OutOffset+l.copied:][:n], l.near.segment[l.from+l.copied:][:n])
	if area.load(l.entry) != l.serial {
		return false, false, fmt.Errorf("rank %d took its message back: %w", l.op.Peer, phalanx.ErrRevoked)
	}
	if l.copied += n; l.copied < l.bytes {
		return false, true, nil
	}
	c.area.store(ackWord(l.near.index, l.entry), l.serial)
	l.near.rouse()
	return true, true, nil
}

// findEntry looks for the message on the neighbour's board.
func (c *courier) findEntry(l *letter) bool {
	area := l.near.area
	for p := range courierPlaces {
		at := courierEntries + p*entryWords
		serial := area.load(at)
		if serial == 0 || serial>>32 != stampOf(c.f.gen, 0)>>32 || area.load(at+entryTo) != uint64(c.f.self.Rank)+1 ||
			area.load(at+entryGroup) != l.w.id || area.load(at+entryTag) != l.op.Tag || area.load(at+entryOrder) != l.order {
			continue
		}
		from := int64(area.load(at + entryOffset))
		if area.load(at) == serial && c.area.load(ackWord(l.near.index, at)) != serial {
			l.serial, l.entry, l.from = serial, at, from
			return true
		}
	}
	return false
}
