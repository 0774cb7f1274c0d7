// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"time"

	"phalanx"
	"phalanx/client/wire"
	"phalanx/collective/host"
	"phalanx/elastic"
	"phalanx/internal/failpoint"
)

// adopt takes over the page of this member's last life, or starts a new one.
func (d *Daemon) adopt() error {
	l, err := adoptLife(d.paths, d.cfg.Index, d.me(), 2*time.Second)
	switch {
	case errors.Is(err, wire.ErrFormat):
		// What that life has promised is lost with its page, as after a reboot: nobody speaks for it any more, and the next one
		// is another. Its trainer, if it lives, cannot be told anything.
		d.log.Warn("the page of the last life is damaged, and the next life begins without it", "error", err)
		l, d.before = nil, d.endTrainers()
	case err != nil:
		return err
	}
	d.state = d.replica.state.Load()
	if l == nil {
		return d.newIncarnation()
	}
	d.life = l
	d.noteNamed()
	failpoint.Here("page-adopted")
	if d.plain != nil {
		l.plain = true
		d.plain.adopt(l)
	}
	d.heard = l.helloPID != 0
	l.lastMove = time.Now() // how long it had been still before is not known
	if err := l.openSlab(d.paths, d.cfg.Index, d.ownLayout()); err != nil {
		d.log.Debug("no slab to take over", "error", err)
	}
	if len(l.slabs) > 0 && l.segment != nil { // it fitted when it was made
		slab := l.slabBytes()
		_ = d.memory.admit(outfitBytes(int64(len(l.segment.Bytes())), host.BoardBytes, int64(len(l.slabs))*slab, slab))
		if d.cfg.Slabs > len(l.slabs) {
			l.oneSlab = "no second slab: its trainer has begun with one"
		}
	}
	switch {
	case l.broken != nil: // its page is whole, so its promises hold; a trainer cannot be served
		d.log.Warn("the shared memory of the last life is damaged, and its trainer is ended", "error", l.broken)
		l.trainer.kill()
		d.noteTrainerDeath("its shared memory was damaged when the daemon came back", time.Now())
		d.before, l.trainer = l.trainer, nil
	case l.helloPID != 0 && ended(d.paths.system, l.helloPID, l.helloStart):
		d.noteTrainerDeath("it had ended when the daemon came back", time.Now())
		d.before, l.trainer = l.trainer, nil
	}
	l.identify(d.paths.system, d.cfg.Index, false)
	if v, n := l.page.ReadView(); n > 0 {
		d.lease = v.LeaseBoottimeNS
	}
	l.machine = elastic.NewMachine(l.who, d.state, d.promises(l))
	l.seen = l.readTrainer()
	d.refreshSiblings()
	d.setLease()
	if l.trainer != nil {
		if err := d.procs.Watch(l.helloPID, l.helloStart, trainerKey{l.who}); err != nil {
			d.log.Warn("the adopted trainer is not watched", "error", err)
		}
	}
	d.log.Info("took over", "incarnation", uint64(l.who.Incarnation), "trainer_pid", l.helloPID, "trainer", l.trainer != nil)
	failpoint.Here("promises-read")
	if _, over := d.state.EndsRun(d.started()); !over { // else the loop ends the daemon, and the trainer with it
		d.run(l.machine.Adopt(l.seen))
		d.repeatVote()
	}
	failpoint.Here("took-over")
	return nil
}

// promises is what a page says, and since when this start counts.
func (d *Daemon) promises(l *life) elastic.Page {
	p := l.promises()
	p.Started = d.started()
	return p
}

func (d *Daemon) started() int64 {
	if d.cfg.Started.IsZero() {
		return 0
	}
	return d.cfg.Started.UnixNano()
}

// newIncarnation begins the next life of the member: one that no entry, page or file has ever named.
func (d *Daemon) newIncarnation() error {
	n := d.lastIncarnation() + 1
	if err := writeJSON(d.paths.Member(d.cfg.Index)+"/incarnation.json", n); err != nil {
		return err
	}
	failpoint.Here("incarnation-written")
	l, err := newLife(d.paths, d.cfg.Index, phalanx.Incarnate{Member: d.me(), Incarnation: n})
	if err != nil {
		return err
	}
	before := d.life
	if before != nil {
		d.retire(before)
	}
	d.life = l
	d.noteNamed()
	l.plain = d.plain != nil
	d.lease, d.leaseOK, d.asked = 0, false, time.Time{} // a lease belongs to one life
	l.identify(d.paths.system, d.cfg.Index, false)
	failpoint.Here("life-made")
	if before != nil && d.over(before.who.Incarnation) {
		d.paths.RemoveSegment(d.cfg.Index, before.who.Incarnation) // at once: the next trainer asks for one of its own
	}
	l.machine = elastic.NewMachine(l.who, d.state, elastic.Page{Started: d.started()})
	if err := pruneLogs(d.paths, l.who, d.cfg.KeepLogs); err != nil {
		d.log.Warn("output of old lives is kept", "error", err)
	}
	d.log.Info("new incarnation", "incarnation", uint64(n))
	d.dirty = true
	return nil
}

// noteNamed notes whether the log counts on the present life, for goroutines that answer others.
func (d *Daemon) noteNamed() {
	m := d.state.Member(d.me())
	d.named.Store(d.life != nil && m != nil && m.State != elastic.Gone && m.Incarnation == d.life.who.Incarnation)
}

func (d *Daemon) lastIncarnation() phalanx.Incarnation {
	var n phalanx.Incarnation
	_ = readJSON(d.paths.Member(d.cfg.Index)+"/incarnation.json", &n) // none: the first life
	if m := d.state.Member(d.me()); m != nil {
		n = max(n, m.Incarnation)
	}
	if lives := d.paths.Lives(d.cfg.Index); len(lives) > 0 {
		n = max(n, lives[len(lives)-1])
	}
	if d.life != nil {
		n = max(n, d.life.who.Incarnation)
	}
	return n
}

// retire lets a life go. Its collectives have been revoked; the memory is unmapped once nobody uses it.
func (d *Daemon) retire(l *life) {
	l.retired.Store(true)
	d.procs.Unwatch(trainerKey{l.who})
	if l.trainer != nil {
		l.trainer.kill()
	}
	left := d.engine.Revoke(d.state.World.Generation)
	d.stopForming()
	if l.ringOf != nil {
		l.ringOf.cancel()
	}
	d.stopHealing()
	healed, saver := d.healed, d.saver
	d.ends.Go(func() {
		<-left
		if healed != nil {
			<-healed
		}
		saver.release(l)
		d.peers.serving.release(l)
		d.forming.Lock() // a formation that was under way reads it
		defer d.forming.Unlock()
		if err := l.unmap(); err != nil {
			d.log.Debug("unmap", "error", err)
		}
	})
}

// sweep removes the shared memory of lives that the log calls gone. Before, a page may hold a promise and a slab the only
// copy of the state. While a slab is needed its page stays, by which the next daemon finds it, and nothing else: a segment is as
// large as the gradients.
func (d *Daemon) sweep() {
	for _, n := range d.paths.Lives(d.cfg.Index) {
		if d.life != nil && n >= d.life.who.Incarnation || !d.over(n) {
			continue
		}
		if d.saver.needs(n) {
			d.paths.RemoveSegment(d.cfg.Index, n)
			continue
		}
		failpoint.Here("sweeping")
		d.paths.Remove(d.cfg.Index, n)
	}
}

// over reports whether the log calls a life of this member gone.
func (d *Daemon) over(n phalanx.Incarnation) bool {
	m := d.state.Member(d.me())
	return m != nil && (m.Incarnation > n || m.Incarnation == n && m.State == elastic.Gone)
}
