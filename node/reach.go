// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"time"

	"phalanx"
)

const (
	// cutAfter is how long every attempt to connect must have failed before the leader is told.
	cutAfter = 3 * time.Second
	// trialEvery is how often a member outside of the world looks whether it would reach it, trialAgain after a failure.
	trialEvery, trialAgain = 5 * time.Second, 500 * time.Millisecond
	// trialTimeout bounds one such look.
	trialTimeout = 2 * time.Second
	// trialBytes go there and back: more than one packet of the largest size.
	trialBytes = 16 << 10
)

// reach notes which members of the world this daemon does not reach. The leader hears both ends of such a pair, and would wait
// for ever for what they have to tell each other: it decides which of the two goes.
//
// A daemon in the world knows by its links for votes and collectives. One outside tries: who does not reach the world waits
// outside, or it would bring down each world that takes it in.
type reach struct {
	mu      sync.Mutex
	failing map[line]time.Time // since when no attempt has gone well
	trials  map[string]*trial  // by host of the world
}

// line is what one protocol needs of the network between this daemon and a member's.
type line struct {
	to       phalanx.MemberID
	protocol string
}

// trial is what a look at a host has come to.
type trial struct {
	member phalanx.MemberID // the first of that host in the world
	busy   bool
	at     time.Time // end of the last one
	well   time.Time // end of the last one that went well
}

// wentWell reports whether the last look did.
func (t *trial) wentWell() bool { return !t.at.IsZero() && t.well.Equal(t.at) }

func newReach() *reach { return &reach{failing: map[line]time.Time{}, trials: map[string]*trial{}} }

// failed notes an attempt that began at the given time and did not go well.
func (r *reach) failed(to phalanx.MemberID, protocol string, began time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, already := r.failing[line{to, protocol}]; !already {
		r.failing[line{to, protocol}] = began
	}
}

// reached notes a connection.
func (r *reach) reached(to phalanx.MemberID, protocol string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.failing, line{to, protocol})
}

// keep forgets what is not of this world. Collectives are connected anew in each, and who is in it tries nothing.
func (r *reach) keep(w *phalanx.World, in bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for l := range r.failing {
		if l.protocol == ProtoData || w.SeatOf(l.to) == nil {
			delete(r.failing, l)
		}
	}
	for host := range r.trials {
		if in || !slices.ContainsFunc(w.Seats, func(s phalanx.Seat) bool { return s.Member.Host() == host }) {
			delete(r.trials, host)
		}
	}
}

// cut lists the members of the world that a daemon in it has not reached for some time.
func (r *reach) cut(now time.Time) []phalanx.MemberID {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []phalanx.MemberID
	for l, since := range r.failing {
		if now.Sub(since) >= cutAfter {
			out = append(out, l.to)
		}
	}
	slices.SortFunc(out, phalanx.CompareMemberIDs)
	return slices.Compact(out)
}

// apart lists one member of each host of the world that a daemon outside of it has not reached of late.
func (r *reach) apart(w *phalanx.World, host string, now time.Time) []phalanx.MemberID {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []phalanx.MemberID
	for _, m := range oneOfEach(w, host) {
		if t := r.trials[m.Host()]; t == nil || !t.wentWell() || now.Sub(t.well) > 2*trialEvery+trialTimeout {
			out = append(out, m)
		}
	}
	return out
}

// oneOfEach lists the first member of each host of the world but one.
func oneOfEach(w *phalanx.World, but string) []phalanx.MemberID {
	var out []phalanx.MemberID
	seen := map[string]bool{but: true}
	for _, s := range w.Seats {
		if h := s.Member.Host(); !seen[h] {
			seen[h] = true
			out = append(out, s.Member)
		}
	}
	return out
}

// due takes the looks that are due, one for each host of the world.
func (r *reach) due(w *phalanx.World, host string, now time.Time) []phalanx.MemberID {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []phalanx.MemberID
	for _, m := range oneOfEach(w, host) {
		t := r.trials[m.Host()]
		if t == nil {
			t = &trial{}
			r.trials[m.Host()] = t
		}
		wait := trialEvery
		if !t.wentWell() {
			wait = trialAgain
		}
		if !t.busy && (t.at.IsZero() || now.Sub(t.at) >= wait) {
			t.member, t.busy = m, true
			out = append(out, m)
		}
	}
	return out
}

// tried notes the end of a look. It reports whether the answer is another than the last one.
func (r *reach) tried(to phalanx.MemberID, well bool, now time.Time) (changed bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	t := r.trials[to.Host()]
	if t == nil || t.member != to {
		return false // the world has changed meanwhile
	}
	before := t.wentWell()
	t.busy, t.at = false, now
	if well {
		t.well = now
	}
	return before != well
}

// tryWorld looks, outside of the world, whether the daemons in it can be reached.
func (p *peerLinks) tryWorld(now time.Time) {
	d := p.d
	w := &d.state.World
	if d.plain != nil || w.SeatOf(d.me()) != nil {
		return
	}
	for _, id := range p.reach.due(w, d.cfg.Host, now) {
		d.ends.Go(func() {
			err := p.try(id)
			changed := p.reach.tried(id, err == nil, time.Now())
			d.post(func() {
				d.dirty = true
				switch {
				case changed && err != nil:
					d.log.Warn("waits outside of the world: it would not be reached", "peer", string(id), "error", err)
				case changed:
					d.log.Debug("reaches the world", "peer", string(id))
				}
			})
		})
	}
}

// try sends bytes there and back as votes and collectives would go.
func (p *peerLinks) try(id phalanx.MemberID) error {
	peer, ok := p.d.roster.peer(id)
	if !ok {
		return fmt.Errorf("the address of %s is not known", id)
	}
	ctx, cancel := context.WithTimeout(p.d.ctx, trialTimeout)
	defer cancel()
	for _, protocol := range []string{ProtoTryPeer, ProtoTryData} {
		if err := p.d.listener.try(ctx, peer.Addr, protocol); err != nil {
			return err
		}
	}
	return nil
}

func (l *Listener) try(ctx context.Context, addr, protocol string) error {
	c, err := l.Dial(ctx, addr, protocol)
	if err != nil {
		return err
	}
	defer c.Close()
	stop := context.AfterFunc(ctx, func() { c.Close() })
	defer stop()
	sent, back := make([]byte, trialBytes), make([]byte, trialBytes)
	for i := range sent {
		sent[i] = byte(i)
	}
	if _, err := c.Write(sent); err != nil {
		return fmt.Errorf("try %s for %s: %w", addr, protocol, err)
	}
	if _, err := io.ReadFull(c, back); err != nil {
		return fmt.Errorf("try %s for %s: %w", addr, protocol, err)
	}
	if !bytes.Equal(sent, back) {
		return fmt.Errorf("try %s for %s: other bytes came back", addr, protocol)
	}
	return nil
}

// answerTrials sends back what daemons outside of the world try it with.
func (d *Daemon) answerTrials(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		d.ends.Go(func() {
			defer c.Close()
			stop := context.AfterFunc(d.ctx, func() { c.Close() })
			defer stop()
			_ = c.SetDeadline(time.Now().Add(trialTimeout))
			b := make([]byte, trialBytes)
			if _, err := io.ReadFull(c, b); err == nil {
				_, _ = c.Write(b) // the other end tells
			}
		})
	}
}
