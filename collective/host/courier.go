// SPDX-License-Identifier: Apache-2.0

package host

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"phalanx"
)

// The courier passes messages between two members: Send and Recv, which match in the order of their posts for each group, direction
// and tag, and wait for nothing else. It is one goroutine of a formation.
//
// Inside a host the sender puts an entry on its board, in the place of its descriptor in the ring, and the receiver copies from the
// sender's segment. Then it stores the entry's serial in its acknowledgement for that sender and place. Between hosts the sender
// offers a message, the receiver takes it with credit for some chunks, and the sender copies them into frames.
const (
	courierPlaces = maxQueued
	courierLocals = 256 // members of one host

	// The words of the courier's part of a board. courierOf is the stamp of the generation.
	courierOf       = 0
	courierSleeping = 1
	// courierUsed is the stamp of the generation once a message was posted, and courierLost once a daemon took over that does not
	// know how many there were.
	courierUsed    = 2
	courierLost    = 3
	courierEntries = 8
	courierAcks    = courierEntries + courierPlaces*entryWords

	// The words of an entry. The serial is 0 while the others change.
	entrySerial = 0
	entryTo     = 1 // rank + 1
	entryGroup  = 2
	entryTag    = 3
	entryOrder  = 4
	entryOffset = 5
	entryBytes  = 6
	entryWords  = 8

	courierBytes = (8*(courierAcks+courierLocals*courierPlaces) + 4095) / 4096 * 4096
)

// courierArea returns the courier's words of a board, none when the member makes no groups.
func courierArea(memory []byte) board {
	if lanes(memory) == 0 {
		return board{}
	}
	return board{words: u64s(memory[BoardBytes:][:courierBytes])}
}

type courier struct {
	f       *formation
	area    board
	index   int // of this member among those of its host
	locals  map[phalanx.Rank]*neighbour
	wake    chan struct{} // 1: only "look again" matters
	pending atomic.Int64  // letters that are not done
	lost    bool          // the daemon before this one has passed messages, and nobody knows how many

	letters []*letter // the goroutine's own
	lanes   map[laneKey]board

	mu     sync.Mutex
	ended  bool
	posted []*letter
	frames []arrived
	broken map[phalanx.Rank]error
	orders map[orderKey]uint64  // how many messages were posted
	offers map[offerKey]message // of other hosts, that nobody has taken yet
}

// neighbour is another member of the host.
type neighbour struct {
	index   int
	segment []byte
	memory  []byte
	area    board
	ring    func()
}

type arrived struct {
	from phalanx.Rank
	f    *frame
}

type laneKey struct {
	rank phalanx.Rank
	id   uint64
}

type orderKey struct {
	laneKey
	tag  uint64
	send bool
}

type offerKey struct {
	laneKey
	tag, order uint64
}

// message is what another host offers.
type message struct {
	seq   uint32
	bytes int64
}

// letter is one Send or Recv under way.
type letter struct {
	w     *worker
	peer  *member
	op    Op
	bytes int64
	order uint64
	done  func(error)

	near  *neighbour // nil: the peer is on another host
	since time.Time  // of the last progress

	// entry of a send: its serial. Of a receive: the serial that is being copied, 0 before there is one, and its words.
	serial uint64
	entry  int
	from   int64
	copied int64
	// Between hosts: whether the offer was taken, the sender's seq, the chunks that were sent or received, and that may be.
	taken  bool
	seq    uint32
	chunks int
	credit uint64
}

func newCourier(f *formation) *courier {
	c := &courier{
		f: f, area: courierArea(f.self.Board), locals: map[phalanx.Rank]*neighbour{}, wake: make(chan struct{}, 1), lanes: map[laneKey]board{},
		broken: map[phalanx.Rank]error{}, orders: map[orderKey]uint64{}, offers: map[offerKey]message{},
	}
	ranks := []phalanx.Rank{f.self.Rank}
	for _, l := range f.locals {
		ranks = append(ranks, l.Rank)
	}
	slices.Sort(ranks)
	c.index = slices.Index(ranks, f.self.Rank)
	for _, l := range f.locals {
		c.locals[l.Rank] = &neighbour{slices.Index(ranks, l.Rank), l.Segment, l.Board, courierArea(l.Board), l.Ring}
	}
	return c
}

// reset begins a generation on the board.
func (c *courier) reset() {
	if c.area.words == nil {
		return
	}
	stamp := stampOf(c.f.gen, 0) | 1
	if c.area.load(courierUsed) == stamp {
		c.lost = true
		c.area.store(courierLost, stamp)
	}
	c.area.store(courierOf, 0)
	c.area.store(courierSleeping, 0)
	for p := range courierPlaces {
		c.area.store(courierEntries+p*entryWords, 0)
	}
	c.area.store(courierOf, stamp)
}

func (c *courier) signal() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

func (c *courier) ping() {
	if c.pending.Load() > 0 {
		c.signal()
	}
}

// post takes a Send or Recv.
func (c *courier) post(w *worker, op Op, done func(error)) {
	l, err := c.letter(w, op, done)
	if err != nil {
		done(fmt.Errorf("%s %d: %w", op.Kind, op.Seq, err))
		return
	}
	c.mu.Lock()
	if c.ended {
		c.mu.Unlock()
		done(fmt.Errorf("%s %d: generation %s: %w", op.Kind, op.Seq, c.f.gen, phalanx.ErrRevoked))
		return
	}
	key := orderKey{laneKey{l.peer.rank, w.id}, op.Tag, op.Kind == Send}
	l.order = c.orders[key]
	c.orders[key]++
	if c.area.words != nil {
		c.area.store(courierUsed, stampOf(c.f.gen, 0)|1)
	}
	c.posted = append(c.posted, l)
	c.pending.Add(1)
	c.mu.Unlock()
	c.signal()
}

// letter checks what a trainer asks for.
func (c *courier) letter(w *worker, op Op, done func(error)) (*letter, error) {
	at := slices.IndexFunc(w.members, func(m member) bool { return m.rank == op.Peer })
	if at < 0 || w.members[at].self {
		return nil, fmt.Errorf("peer %d is not another member of the group: %w", op.Peer, ErrInvalid)
	}
	size, room, offset := op.DType.Size(), int64(len(c.f.self.Segment)), op.InOffset
	if op.Kind == Recv {
		offset = op.OutOffset
	}
	if size == 0 || op.Count < 0 || op.Count > room/size {
		return nil, fmt.Errorf("%d elements of type %d in a segment of %d bytes: %w", op.Count, op.DType, room, ErrInvalid)
	}
	if err := fits(room, size, offset, 0, 1, op.Count*size); op.Count > 0 && err != nil {
		return nil, fmt.Errorf("%v: %w", err, ErrInvalid)
	}
	if op.Count == 0 { // nothing lies nowhere
		op.InOffset, op.OutOffset = 0, 0
	}
	l := &letter{w: w, peer: &w.members[at], op: op, bytes: op.Count * size, done: done, near: c.locals[op.Peer]}
	if l.near != nil && l.near.area.words == nil {
		return nil, fmt.Errorf("rank %d makes no groups: %w", op.Peer, ErrInvalid)
	}
	if c.lost {
		return nil, fmt.Errorf("this daemon does not know the messages of the one before it: %w", phalanx.ErrRevoked)
	}
	return l, nil
}

func (c *courier) run() {
	defer c.end()
	timer := time.NewTimer(c.f.e.o.GroupTimeout)
	defer timer.Stop()
	for {
		select {
		case <-c.f.stop:
			return
		default:
		}
		if c.look() {
			continue
		}
		if len(c.letters) > 0 {
			c.sleeping(1)
			if c.look() {
				c.sleeping(0)
				continue
			}
		}
		timer.Reset(c.f.e.o.GroupTimeout)
		select {
		case <-c.wake:
		case <-timer.C:
		case <-c.f.stop:
		}
		c.sleeping(0)
	}
}

func (c *courier) sleeping(v uint64) {
	if c.area.words != nil {
		c.area.store(courierSleeping, v)
	}
}

// look does at most one chunk of each letter, and reports whether that was anything.
func (c *courier) look() (did bool) {
	c.mu.Lock()
	posted, frames := c.posted, c.frames
	c.posted, c.frames = nil, nil
	c.mu.Unlock()
	for _, a := range frames {
		c.take(a)
		did = true
	}
	now := time.Now()
	for _, l := range posted {
		l.since = now
		c.letters = append(c.letters, l)
		c.begin(l)
		did = true
	}
	open := c.letters[:0]
	var over []func()
	for _, l := range c.letters {
		finished, moved, err := c.step(l)
		did = did || moved || finished
		switch {
		case err == nil && moved:
			l.since = now
		case err == nil && !finished && now.Sub(l.since) >= c.f.e.o.GroupTimeout:
			err = fmt.Errorf("waited %s for rank %d: %w", c.f.e.o.GroupTimeout, l.op.Peer, ErrDeadline)
		}
		if !finished && err == nil {
			open = append(open, l)
			continue
		}
		did = true
		over = append(over, func() { c.close(l, err) })
	}
	clear(c.letters[len(open):])
	c.letters = open
	for _, f := range over {
		f()
	}
	return did
}

// close ends a letter: nobody reads or writes the trainer's memory for it any more.
func (c *courier) close(l *letter, err error) {
	if l.near != nil && l.op.Kind == Send && l.serial != 0 {
		c.area.store(l.entry, 0)
	}
	c.pending.Add(-1)
	if err != nil {
		err = fmt.Errorf("%s %d with rank %d: %w", l.op.Kind, l.op.Seq, l.op.Peer, err)
	}
	l.done(err)
}

func (c *courier) end() {
	c.mu.Lock()
	c.ended = true
	posted, frames := c.posted, c.frames
	c.posted, c.frames = nil, nil
	c.mu.Unlock()
	for _, a := range frames {
		a.f.free()
	}
	for _, l := range append(c.letters, posted...) {
		c.close(l, fmt.Errorf("generation %s: %w", c.f.gen, phalanx.ErrRevoked))
	}
	c.letters = nil
}

func (c *courier) head(l *letter, typ frameType, seq uint32) header {
	return header{typ: typ, group: groupMade, id: l.w.id, gen: c.f.gen, source: uint32(c.f.self.Rank), seq: seq}
}

// step does at most one chunk of a letter.
func (c *courier) step(l *letter) (finished, moved bool, err error) {
	if err := c.alive(l); err != nil {
		return false, false, err
	}
	switch {
	case l.near != nil && l.op.Kind == Send:
		return c.awaitAck(l)
	case l.near != nil:
		return c.copyLetter(l)
	case l.op.Kind == Send:
		return c.sendChunk(l)
	}
	return c.receive(l)
}

// alive returns an error when the group or the peer is gone.
func (c *courier) alive(l *letter) error {
	if l.w.dead.Load() {
		return fmt.Errorf("group %#x is dead: %w", l.w.id, phalanx.ErrRevoked)
	}
	if l.near != nil {
		if l.near.area.load(courierLost) == stampOf(c.f.gen, 0)|1 {
			return fmt.Errorf("its daemon was replaced: %w", ErrPeer)
		}
		key := laneKey{l.op.Peer, l.w.id}
		lane, ok := c.lanes[key]
		if !ok {
			for i := range lanes(l.near.memory) {
				if b := laneOf(l.near.memory, i); b.holds(c.f.gen, l.w.id) {
					lane, ok = b, true
					c.lanes[key] = b
					break
				}
			}
		}
		if ok && (lane.load(wordFailed) != 0 || !lane.holds(c.f.gen, l.w.id)) {
			delete(c.lanes, key)
			return ErrPeer
		}
		return nil
	}
	l.w.mu.Lock()
	failed := l.peer.peer.failed != 0
	l.w.mu.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.broken[l.op.Peer]; err != nil {
		return err
	}
	if failed {
		return ErrPeer
	}
	return nil
}

// ringAll rings the neighbours whose couriers sleep: a group is dead.
func (c *courier) ringAll() {
	for _, n := range c.locals {
		n.rouse()
	}
}
