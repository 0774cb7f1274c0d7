// SPDX-License-Identifier: Apache-2.0

package node

import (
	"time"

	"phalanx"
	"phalanx/client/wire"
	"phalanx/membership"
)

// sibling is another member of this host as its page and the kernel show it. The loop owns it.
type sibling struct {
	index    int
	life     phalanx.Incarnation
	page     *wire.Page
	identity wire.Identity
	bell     wire.Bell
	daemon   bool
	trainer  bool
	stopped  membership.Stopped
	voteSeq  uint64
	goneNS   int64 // when its trainer was seen dead
	working  wire.Work
}

// siblingKey names a watched process of a sibling in ProcWatch.
type siblingKey struct {
	index   int
	life    phalanx.Incarnation
	trainer bool
	pid     int
}

// watchHost looks at the others of this host: at once at what is new, and a few times a second at who is stopped.
func (d *Daemon) watchHost() {
	version := d.paths.SharedVersion()
	d.renamed = version == 0 || version != d.names
	d.names = version
	switch {
	case d.renamed:
		d.refreshSiblings()
	case d.ticks%4 == 0:
		for _, s := range d.siblings[:d.cfg.LocalSize] {
			if s != nil {
				d.checkSibling(s)
			}
		}
	}
}

// refreshSiblings maps the newest pages of the other members of this host and watches their processes. It is called
// when files have come or gone and whenever a world is formed; mapping is done once per life.
func (d *Daemon) refreshSiblings() {
	all := d.paths.AllLives()
	for index := range d.cfg.LocalSize {
		if index == d.cfg.Index {
			continue
		}
		lives := all[index]
		s := d.siblings[index]
		if len(lives) == 0 {
			continue
		}
		newest := lives[len(lives)-1]
		if s == nil || s.life != newest {
			page, err := d.paths.memory.WatchPage(d.paths.Shared(index, newest, "page"))
			if err != nil {
				continue // being made, or gone again
			}
			if s != nil {
				d.dropSibling(s)
			}
			s = &sibling{index: index, life: newest, page: page, bell: d.bells.Bell(2 * index)}
			d.siblings[index] = s
		}
		d.checkSibling(s)
	}
}

// sibling is what is known of another member of this host, nil for none: a name comes from outside, and any number may be in it.
func (d *Daemon) sibling(id phalanx.MemberID) *sibling {
	if i := id.Index(); i >= 0 && i < len(d.siblings) && id.Host() == d.cfg.Host {
		return d.siblings[i]
	}
	return nil
}

func (d *Daemon) dropSibling(s *sibling) {
	d.procs.Unwatch(siblingKey{s.index, s.life, false, s.identity.DaemonPID})
	d.procs.Unwatch(siblingKey{s.index, s.life, true, s.identity.TrainerPID})
	_ = s.page.Unmap() // only the loop reads it
}

// checkSibling reads who runs a sibling now and watches new processes.
func (d *Daemon) checkSibling(s *sibling) {
	boot0, boot1 := bootWords(d.paths.system)
	v, n := s.page.ReadIdentity()
	if n == 0 || v.Boot0 != boot0 || v.Boot1 != boot1 {
		return
	}
	old := s.identity
	s.identity = v
	if v.DaemonPID != old.DaemonPID || v.DaemonStart != old.DaemonStart {
		if old.DaemonPID != 0 {
			d.procs.Unwatch(siblingKey{s.index, s.life, false, old.DaemonPID})
		}
		s.daemon = d.paths.system.Alive(v.DaemonPID, v.DaemonStart)
		s.stopped = membership.Stopped{}
		if err := d.procs.Watch(v.DaemonPID, v.DaemonStart, siblingKey{s.index, s.life, false, v.DaemonPID}); err != nil {
			d.log.Debug("sibling's daemon is not watched", "member", string(v.Member), "error", err)
		}
	}
	if v.TrainerPID != old.TrainerPID || v.TrainerStart != old.TrainerStart {
		if old.TrainerPID != 0 {
			d.procs.Unwatch(siblingKey{s.index, s.life, true, old.TrainerPID})
		}
		s.trainer = false
		if v.TrainerPID != 0 {
			s.trainer = d.paths.system.Alive(v.TrainerPID, v.TrainerStart)
			if err := d.procs.Watch(v.TrainerPID, v.TrainerStart, siblingKey{s.index, s.life, true, v.TrainerPID}); err != nil {
				d.log.Debug("sibling's trainer is not watched", "member", string(v.Member), "error", err)
			}
		}
	}
	if s.daemon {
		st, err := d.paths.system.Stat(v.DaemonPID)
		if err == nil && st.Start == v.DaemonStart {
			s.stopped = s.stopped.Sample(time.Now(), st.State, st.UserTicks+st.SysTicks)
		}
	}
}

// siblingExited notes the end of a watched process.
func (d *Daemon) siblingExited(k siblingKey, at time.Time) {
	s := d.siblings[k.index]
	if s == nil || s.life != k.life {
		return
	}
	if k.trainer && k.pid == s.identity.TrainerPID {
		s.trainer, s.goneNS = false, at.UnixNano()
		s.working, _ = s.page.ReadWork()
		return
	}
	if !k.trainer && k.pid == s.identity.DaemonPID {
		s.daemon = false
		if s.trainer && ended(d.paths.system, s.identity.TrainerPID, s.identity.TrainerStart) { // both were killed; its memory is unmapped later
			d.siblingExited(siblingKey{k.index, k.life, true, s.identity.TrainerPID}, at)
		}
	}
}

// siblingReports is what this daemon's kernel says about the others of the host.
func (d *Daemon) siblingReports(now time.Time) []Sibling {
	var out []Sibling
	for _, s := range d.siblings {
		if s == nil || s.identity.Member == "" {
			continue
		}
		r := Sibling{Incarnate: phalanx.Incarnate{Member: s.identity.Member, Incarnation: s.identity.Incarnation}, Daemon: s.daemon, Trainer: s.trainer,
			DaemonPID: s.identity.DaemonPID, TrainerPID: s.identity.TrainerPID, Stopped: s.daemon && s.stopped.For(now) > stallAfter}
		if !s.trainer && s.goneNS != 0 {
			e := phalanx.Evidence{Kind: phalanx.TrainerExited, About: r.Incarnate, Source: d.me(), UnixNS: s.goneNS, Detail: "its process has ended beside a dead daemon"}
			if s.working.On && s.working.TrainerStart == s.identity.TrainerStart {
				e.Working, e.Step, e.Slot = true, s.working.Step, s.working.Slot
			}
			r.Evidence = &e
		}
		out = append(out, r)
	}
	return out
}
