// SPDX-License-Identifier: Apache-2.0

package node

import (
	"time"
)

// pulseWait is how long a sleep on a trainer's pulse lasts at most: so late ends the watch of a life that is retired.
const pulseWait = 200 * time.Millisecond

// pulse watches the pulse of a life's trainer.
type pulse struct {
	stop, done chan struct{}
}

// watchPulse begins once the trainer keeps a pulse. Only the own daemon watches: the kernel wakes one waiter.
func (d *Daemon) watchPulse(l *life) {
	if l.pulse != nil || !l.page.HasPulse() {
		return
	}
	p := &pulse{make(chan struct{}), make(chan struct{})}
	l.pulse = p
	d.ends.Go(func() {
		defer close(p.done)
		for l.page.HasPulse() && !l.page.PulseEnded() {
			select {
			case <-p.stop:
				return
			case <-d.ctx.Done():
				return
			default:
				l.page.WaitPulse(pulseWait)
			}
		}
		if l.page.PulseEnded() {
			at := time.Now()
			d.post(func() { d.pulseEnded(l, at) })
		}
	})
}

// end waits until nobody looks at the page any more.
func (p *pulse) end() {
	if p != nil {
		close(p.stop)
		<-p.done
	}
}

// pulseEnded looks whether the trainer is being killed. A thread alone may have ended, or a process that exits by itself, whose
// end the kernel proves only when its memory is unmapped.
func (d *Daemon) pulseEnded(l *life, at time.Time) {
	if l != d.life || l.died != nil || l.helloPID == 0 {
		return
	}
	st, err := d.paths.system.Stat(l.helloPID)
	if err != nil || st.Start != l.helloStart || st.Killed() == 0 {
		return // wait, or the pidfd, tells
	}
	how, code := killedBy(st.Killed())
	d.trainerEnded(l.who, how, code, at)
}

// ended reports whether a process has ended or is being killed, which nothing takes back.
func ended(s System, pid int, start uint64) bool {
	if !s.Alive(pid, start) {
		return true
	}
	st, err := s.Stat(pid)
	return err == nil && st.Start == start && st.Killed() != 0
}
