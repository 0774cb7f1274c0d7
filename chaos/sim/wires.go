// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"math/rand/v2"
	"sync"
	"time"
)

// wires are all networks of the cluster: one link in each direction between two hosts. Packets are lost, late and out of order;
// streams are what TCP makes of that: bytes in order, late, and an end of the connection when nothing gets through for long.
type wires struct {
	mu        sync.Mutex // guards everything of this type and of its connections; held for moments
	rng       *rand.Rand
	links     map[way]*link
	listeners map[string]*listener
	packets   map[string]*packets
	conns     map[*conn]struct{}
	changed   chan struct{} // closed and replaced when a link or a listener changes
}

// way is a direction between hosts.
type way struct{ from, to *host }

type link struct {
	cuts   int           // how many faults cut it now
	delay  time.Duration // at least
	jitter time.Duration // more, at random
	loss   float64       // of packets; a segment of a stream is sent again after the time-out
}

const (
	calmDelay  = 150 * time.Microsecond
	calmJitter = 300 * time.Microsecond
	resendMin  = 200 * time.Millisecond
	giveUp     = 4 * time.Second // a stream with something under way that nobody acknowledges for that long is over
)

func newWires(rng *rand.Rand, hosts []*host) *wires {
	w := &wires{rng: rng, links: map[way]*link{}, listeners: map[string]*listener{}, packets: map[string]*packets{}, conns: map[*conn]struct{}{}, changed: make(chan struct{})}
	for _, a := range hosts {
		for _, b := range hosts {
			if a != b {
				w.links[way{a, b}] = &link{delay: calmDelay, jitter: calmJitter}
			}
		}
	}
	return w
}

// passes reports whether a packet gets through now. A host passes its own packets while it has power.
func (w *wires) passes(v way) bool {
	return v.from.up && v.to.up && (v.from == v.to || w.links[v].cuts == 0)
}

// takes is how long a packet is under way, and whether it arrives.
func (w *wires) takes(v way) (time.Duration, bool) {
	if v.from == v.to {
		return 20 * time.Microsecond, true
	}
	l := w.links[v]
	d := l.delay + time.Duration(w.rng.Int64N(int64(l.jitter)+1))
	return d, l.loss == 0 || w.rng.Float64() >= l.loss
}

// streamTakes is how long a segment of a stream is under way: one that is lost is sent again.
func (w *wires) streamTakes(v way) time.Duration {
	total := time.Duration(0)
	for resend := resendMin; ; resend *= 2 {
		d, arrives := w.takes(v)
		if arrives || resend > 2*time.Second {
			return total + d
		}
		total += resend
	}
}

func (w *wires) notify() {
	close(w.changed)
	w.changed = make(chan struct{})
}

// cut stops a direction; the returned function opens it again.
func (w *wires) cut(v way) (heal func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	l := w.links[v]
	l.cuts++
	var once sync.Once
	healed := make(chan struct{})
	timer := time.AfterFunc(giveUp, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		select {
		case <-healed:
			return
		default:
		}
		for c := range w.conns { // the sender gives up; the other end hears nothing of it
			if c.host == v.from && c.peer.host == v.to && len(c.peer.segments) > 0 {
				c.fail(errTimedOut)
				c.peer.orphan = true
			}
		}
	})
	w.notify()
	return func() {
		once.Do(func() {
			timer.Stop()
			w.mu.Lock()
			defer w.mu.Unlock()
			close(healed)
			l.cuts--
			w.reopen(v)
		})
	}
}

// reopen lets what was held up go, after the time-out of whoever sends it again.
func (w *wires) reopen(v way) {
	now := time.Now()
	for c := range w.conns {
		if c.host == v.to && c.peer.host == v.from {
			at := now.Add(time.Duration(w.rng.Int64N(int64(resendMin))))
			c.hold(at)
			c.poke()
		}
	}
	w.notify()
}

// disturb sets the weather of a direction; the returned function makes it calm again.
func (w *wires) disturb(v way, delay, jitter time.Duration, loss float64) (calm func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	l := w.links[v]
	l.delay, l.jitter, l.loss = delay, jitter, loss
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		l.delay, l.jitter, l.loss = calmDelay, calmJitter, 0
	}
}

// power switches a host on or off. Connections of a host that lost its power are known to the other ends only.
func (w *wires) power(h *host, on bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	h.up = on
	if !on {
		for c := range w.conns {
			if c.host == h {
				c.peer.orphan = true
				c.fail(errPowerless)
				delete(w.conns, c)
			}
		}
		for addr, l := range w.listeners {
			if l.host == h {
				delete(w.listeners, addr)
			}
		}
		for addr, p := range w.packets {
			if p.host == h {
				delete(w.packets, addr)
			}
		}
	}
	for v := range w.links {
		if on && (v.from == h || v.to == h) {
			w.reopen(v)
		}
	}
	w.notify()
}

// bury ends what a dead process had open: its kernel says so to the other ends.
func (w *wires) bury(p *process) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for c := range w.conns {
		if c.proc == p {
			c.shut()
		}
	}
	for addr, l := range w.listeners {
		if l.proc == p {
			delete(w.listeners, addr)
		}
	}
	for addr, u := range w.packets {
		if u.proc == p {
			delete(w.packets, addr)
		}
	}
	w.notify()
}
