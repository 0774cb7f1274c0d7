// SPDX-License-Identifier: Apache-2.0

package host

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"phalanx"
)

// ErrFull is returned for a group when the member has as many as its board has room for.
var ErrFull = errors.New("too many groups")

// made are the groups of ranks that the trainer has made in one generation. Other members may know a group earlier or later.
type made struct {
	list atomic.Pointer[[]*worker] // of those in byID, for who must not wait

	mu    sync.Mutex
	over  bool // the generation is revoked: nothing is made any more
	byID  map[uint64]*worker
	early map[uint64][]earlyFrame // frames of groups that this side has not made yet
	kept  int                     // how many
}

type earlyFrame struct {
	rank phalanx.Rank
	f    *frame
}

// Make makes a group of ranks of the formed generation, for Op.ID. It returns at once: operations wait until all members have made it.
// The same group may be made again. The error wraps ErrStaleGeneration, ErrInvalid for an id that is taken by other ranks or
// ranks that are no group, or ErrFull.
func (e *Engine) Make(gen phalanx.Generation, id uint64, ranks []phalanx.Rank) error {
	f := e.current.Load()
	if f == nil || f.gen != gen {
		return fmt.Errorf("make group %#x in generation %s: %w", id, gen, phalanx.ErrStaleGeneration)
	}
	if err := f.make(id, ranks); err != nil {
		return fmt.Errorf("make group %#x in generation %s: %w", id, gen, err)
	}
	return nil
}

// Abort ends a group that was made: operations under way and later ones end with ErrRevoked, here and on all members. The
// channel is closed when nothing of it runs here any more. A group that is not known, or of another generation, has nothing to end.
func (e *Engine) Abort(gen phalanx.Generation, id uint64) <-chan struct{} {
	if f := e.current.Load(); f != nil && f.gen == gen {
		if w := f.made.get(id); w != nil {
			return w.abort()
		}
	}
	none := make(chan struct{})
	close(none)
	return none
}

// AbortAll aborts all groups that were made in a generation: their trainer has ended.
func (e *Engine) AbortAll(gen phalanx.Generation) {
	if f := e.current.Load(); f != nil && f.gen == gen {
		for _, w := range f.made.all() {
			w.abort()
		}
	}
}

func (w *worker) abort() <-chan struct{} {
	w.aborted.Store(true)
	w.dead.Store(true)
	w.halt()
	w.ping()
	w.f.courier.signal()
	return w.over
}

// postMade queues an operation of a group that was made.
func (f *formation) postMade(op Op, done func(error)) {
	w := f.made.get(op.ID)
	switch {
	case w == nil:
		err := ErrInvalid
		if f.adopted {
			err = phalanx.ErrRevoked // this daemon took over, and does not know the groups that there were
		}
		done(fmt.Errorf("%s %d: group %#x was not made: %w", op.Kind, op.Seq, op.ID, err))
	case op.Kind == Send || op.Kind == Recv:
		f.courier.post(w, op, done)
	default:
		w.post(op, done)
	}
}

func (m *made) get(id uint64) *worker {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.byID[id]
}

func (m *made) all() []*worker {
	if l := m.list.Load(); l != nil {
		return *l
	}
	return nil
}

// publish makes list that of byID. The caller holds the lock.
func (m *made) publish() {
	all := make([]*worker, 0, len(m.byID))
	for _, w := range m.byID {
		all = append(all, w)
	}
	m.list.Store(&all)
}

func ranksHash(ranks []phalanx.Rank) uint64 {
	h := mix(uint64(len(ranks)))
	for _, r := range ranks {
		h = mix(h ^ uint64(r))
	}
	return h
}

func (f *formation) make(id uint64, ranks []phalanx.Rank) error {
	w, err := f.enroll(id, ranks)
	if err != nil {
		return err
	}
	for _, r := range f.remotes { // a link that broke before the group was known has told the others only. Not under made's lock: links call with theirs
		if err := r.Link.Err(); err != nil {
			w.linkBroken(r.Rank, err)
		}
	}
	return nil
}

func (f *formation) enroll(id uint64, ranks []phalanx.Rank) (*worker, error) {
	hash := ranksHash(ranks)
	m := &f.made
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.over {
		return nil, phalanx.ErrStaleGeneration
	}
	if w := m.byID[id]; w != nil {
		if w.ranks != hash {
			return nil, fmt.Errorf("it was made of other ranks: %w", ErrInvalid)
		}
		return w, nil
	}
	for i := range lanes(f.self.Board) {
		if laneOf(f.self.Board, i).holds(f.gen, id) {
			return nil, fmt.Errorf("it ended with the daemon that had made it: %w", phalanx.ErrStaleGeneration)
		}
	}
	lane, err := f.freeLane()
	if err != nil {
		return nil, err
	}
	w, err := f.group(id, ranks, lane)
	if err != nil {
		return nil, err
	}
	w.board.claim(f.gen, id, ranks)
	m.byID[id] = w
	m.publish()
	early := m.early[id]
	delete(m.early, id)
	m.kept -= len(early)
	for _, x := range early {
		w.deliver(x.rank, x.f)
	}
	f.running.Go(w.run)
	return w, nil
}

// group returns the worker of a group, which has a lane.
func (f *formation) group(id uint64, ranks []phalanx.Rank, lane int) (*worker, error) {
	for i, r := range ranks {
		if r < 0 || int(r) >= len(f.world.Seats) || slices.Contains(ranks[:i], r) {
			return nil, fmt.Errorf("rank %d of %v is not of a world of %d, or is there twice: %w", r, ranks, len(f.world.Seats), ErrInvalid)
		}
	}
	if id == 0 || !slices.Contains(ranks, f.self.Rank) {
		return nil, fmt.Errorf("own rank %d is not one of %v: %w", f.self.Rank, ranks, ErrInvalid)
	}
	w := newWorker(f, groupMade, len(ranks), laneOf(f.self.Board, lane))
	w.id, w.ranks, w.lane = id, ranksHash(ranks), lane
	for _, r := range ranks {
		w.add(f.world.Seats[r], f.self, f.locals, f.remotes)
	}
	w.complete()
	return w, nil
}

// adoptLane goes on with a group of this generation that the daemon before this one has made, or frees the lane. A group of which
// not enough is known here is given up.
func (f *formation) adoptLane(lane int) {
	b := laneOf(f.self.Board, lane)
	if b.load(wordOf) != stampOf(f.gen, 0)|1 {
		b.store(wordOf, 0)
		return
	}
	f.adopted = true
	id := b.load(wordGroup)
	w, err := f.group(id, b.ranks(), lane)
	if err != nil || b.load(wordFailed) != 0 || f.made.byID[id] != nil {
		b.clear()
		b.store(wordFailed, stampOf(f.gen, 1))
		return
	}
	w.adopted = b.adopted(f.gen)
	f.made.byID[id] = w
	f.made.publish()
	f.running.Go(w.run)
}

// freeLane returns a lane of the own board that no group needs: a group needs its lane until all members know that it is dead. The
// caller holds the lock.
func (f *formation) freeLane() (int, error) {
	used := map[int]*worker{}
	for _, w := range f.made.byID {
		used[w.lane] = w
	}
	n := lanes(f.self.Board)
	for i := range n {
		// What the daemon before this one has left of the generation says that a group is dead, and stays.
		if used[i] == nil && laneOf(f.self.Board, i).load(wordOf) != stampOf(f.gen, 0)|1 {
			return i, nil
		}
	}
	for i := range n {
		if w := used[i]; w.forgotten() {
			delete(f.made.byID, w.id)
			return i, nil
		}
	}
	return 0, fmt.Errorf("%d are in use; abort those that are not needed: %w", n, ErrFull)
}

// forgotten reports whether all members know that the group is dead, and nothing of it runs here.
func (w *worker) forgotten() bool {
	select {
	case <-w.over:
	default:
		return false
	}
	for i := range w.members {
		m := &w.members[i]
		switch {
		case m.self:
		case m.local != nil:
			m.local.find(w.f.gen, w.id)
			if b := m.local.board; b.words == nil || b.holds(w.f.gen, w.id) && b.load(wordFailed) == 0 {
				return false
			}
		default:
			w.mu.Lock()
			failed := m.peer.failed != 0 || m.peer.broken != nil
			w.mu.Unlock()
			if !failed {
				return false
			}
		}
	}
	return true
}

// maxKept bounds the frames without payload that are kept for groups which this side has not made yet.
const maxKept = 1 << 14

// deliver takes a frame of a group that a trainer has made.
func (m *made) deliver(rank phalanx.Rank, f *frame) error {
	m.mu.Lock()
	w := m.byID[f.id]
	if w == nil && f.payload == 0 && !m.over {
		defer m.mu.Unlock()
		if m.kept >= maxKept {
			return fmt.Errorf("%d frames came for groups that are not known here", m.kept)
		}
		m.kept++
		m.early[f.id] = append(m.early[f.id], earlyFrame{rank, f})
		return nil
	}
	m.mu.Unlock()
	if w == nil {
		f.free()
		return nil
	}
	w.deliver(rank, f)
	return nil
}
