// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"context"
	"runtime"
	"sync"
	"time"
)

// process is a daemon or a trainer. Its goroutines ask it at every system call whether they may go on: a process that is stopped
// waits there, one that is dead changes nothing any more.
type process struct {
	host  *host
	name  string
	pid   int
	start uint64
	ctx   context.Context // ends at death
	end   context.CancelFunc
	gone  chan struct{} // closed when nothing of it runs: its end has been reported

	mu      sync.Mutex
	stopped time.Time // until when it is stopped
	rings   int       // it dies when it has rung so many bells; 0: it does not
	bells   []interface{ Ring() }
}

// stop keeps the process from running for a while, as SIGSTOP and SIGCONT do.
func (p *process) stop(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if until := time.Now().Add(d); until.After(p.stopped) {
		p.stopped = until
	}
}

// wakes is when the process runs again: in the past unless it is stopped.
func (p *process) wakes() time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.stopped
}

func (p *process) isStopped() bool { return time.Now().Before(p.wakes()) }

func (p *process) dead() bool { return p.ctx.Err() != nil }

// pass returns once the process runs; false: it is dead.
func (p *process) pass() bool {
	for !p.dead() {
		wait := time.Until(p.wakes())
		if wait <= 0 {
			return true
		}
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-p.ctx.Done():
		}
		timer.Stop()
	}
	return false
}

// must is pass for a trainer's goroutines, which end here with their process.
func (p *process) must() {
	if !p.pass() {
		runtime.Goexit()
	}
}

// sleep is a computation of a trainer.
func (p *process) sleep(d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-p.ctx.Done():
	}
	p.must()
}

// later runs f now, or when the process runs again. What it did before it stopped counts as done after.
func (p *process) later(f func()) {
	if wait := time.Until(p.wakes()); wait > 0 {
		time.AfterFunc(wait, func() {
			if !p.dead() {
				f()
			}
		})
		return
	}
	f()
}

// kill ends the process. Its end is reported by whoever runs it, once its last goroutine is out.
func (p *process) kill() {
	p.end()
	p.mu.Lock()
	bells := p.bells
	p.mu.Unlock()
	for _, b := range bells {
		b.Ring() // a wait on a bell looks up
	}
}

// killAt has the process die between what it writes and what it does next: after so many rings of bells, each of which follows
// a vote, a seat, a commit or a request on a page.
func (p *process) killAt(rings int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rings = rings
}

// rang counts a ring and reports whether the process died instead.
func (p *process) rang() (died bool) {
	p.mu.Lock()
	died = p.rings == 1
	p.rings = max(0, p.rings-1)
	p.mu.Unlock()
	if died {
		p.kill()
	}
	return died
}

// waitsOn notes a bell that the process may wait on.
func (p *process) waitsOn(b interface{ Ring() }) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.bells = append(p.bells, b)
}
