// SPDX-License-Identifier: Apache-2.0

package consensus

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hashicorp/raft"
)

const (
	// barrierWait bounds one attempt of a new leader to get its barrier into the log.
	barrierWait = time.Second
	// assistedFor is how long Hasten lasts when no leader is found and Relax is not called.
	assistedFor = 5 * time.Second
	// standEvery is by how much each voter lets the one before it try first, when all of them know that the leader is dead:
	// two candidates at once would share the votes and wait for a whole timeout. A candidate asks for votes some 10 ms later,
	// 100 ms on a disk that others keep busy.
	standEvery = 100 * time.Millisecond
)

// Leadership is who leads, as this server knows it.
type Leadership struct {
	Leader string // server id, "" when none is known
	IsSelf bool   // this server leads and has applied everything committed in earlier terms
	Term   uint64
}

// watch turns raft's two signals into Leadership. It alone sends on leaders.
func (l *Log) watch() {
	var last Leadership
	publish := func(next Leadership) {
		if next == last {
			return
		}
		last = next
		l.logger.Info("leader changed", "leader", next.Leader, "self", next.IsSelf, "term", next.Term)
		for {
			select {
			case l.leaders <- next:
				return
			default:
			}
			select { // drop the one before
			case <-l.leaders:
			default:
			}
		}
	}
	follow := func() {
		_, id := l.raft.LeaderWithID()
		if string(id) == l.id {
			return // reported when its barrier was applied
		}
		publish(Leadership{Leader: string(id), Term: l.raft.CurrentTerm()})
		if id != "" {
			l.Relax()
		}
	}
	barrier := make(chan uint64, 1) // 1: a term that was passed over meanwhile is dropped by the receiver
	for {
		select {
		case leads := <-l.notify:
			if !leads {
				l.readyTerm.Store(0)
				follow()
				continue
			}
			l.startBarrier(l.raft.CurrentTerm(), barrier)
		case <-l.observe:
			follow()
		case term := <-barrier:
			if l.raft.State() == raft.Leader && l.raft.CurrentTerm() == term {
				l.readyTerm.Store(term)
				l.Relax()
				publish(Leadership{l.id, true, term})
			}
		case <-l.relaxAt.C:
			l.Relax()
		case <-l.stop:
			l.readyTerm.Store(0)
			publish(Leadership{Term: l.raft.CurrentTerm()})
			return
		}
	}
}

// startBarrier sends term to reached once everything committed before it is applied here.
func (l *Log) startBarrier(term uint64, reached chan<- uint64) {
	done, err := l.enter()
	if err != nil {
		return
	}
	go func() {
		defer done()
		for l.raft.State() == raft.Leader && l.raft.CurrentTerm() == term {
			err := l.raft.Barrier(barrierWait).Error()
			if err == nil {
				select {
				case reached <- term:
				case <-l.stop:
				}
				return
			}
			if !errors.Is(err, raft.ErrEnqueueTimeout) && !errors.Is(err, raft.ErrLeadershipTransferInProgress) {
				return // no longer the leader
			}
		}
	}()
}

// LeaderChanges delivers changes of leadership. Its capacity is 1 and the latest wins: a slow reader misses those between.
func (l *Log) LeaderChanges() <-chan Leadership { return l.leaders }

// Leader returns the leader that this server knows of.
func (l *Log) Leader() (serverID, addr string, ok bool) {
	address, id := l.raft.LeaderWithID()
	if id == "" {
		return "", "", false
	}
	return string(id), l.addressOf(string(id), string(address)), true
}

// addressOf returns the present address of a server, or the stored one where no lookup is configured.
func (l *Log) addressOf(id, stored string) string {
	if id == l.id {
		return l.cfg.LocalAddr
	}
	if l.cfg.Addresses != nil {
		if addr, ok := l.cfg.Addresses(id); ok {
			return addr
		}
	}
	return stored
}

// IsLeader reports whether this server leads and has applied everything committed in earlier terms. It may be outdated by
// the time that the caller acts; VerifyLeader is not.
func (l *Log) IsLeader() bool { return l.readyTerm.Load() != 0 && l.raft.State() == raft.Leader }

// Term returns the current term of this server.
func (l *Log) Term() uint64 { return l.raft.CurrentTerm() }

func (l *Log) notLeader() error {
	id, addr, ok := l.Leader()
	if !ok || id == l.id {
		return ErrNotLeader{}
	}
	return ErrNotLeader{id, addr}
}

// VerifyLeader returns nil when a majority of the voters acknowledged this leader in a round that began after the call.
// Leases count from before the call.
func (l *Log) VerifyLeader(ctx context.Context) error {
	ctx, cancel := withDefaultWait(ctx)
	defer cancel()
	began, term := time.Now(), l.raft.CurrentTerm()
	for {
		if l.raft.State() != raft.Leader || l.raft.CurrentTerm() != term {
			return fmt.Errorf("verify leader: %w", l.notLeader())
		}
		answered := l.trans.next() // before looking, so that no answer is missed
		if l.acknowledged(term, began) {
			return nil
		}
		done, err := l.enter()
		if err != nil {
			return fmt.Errorf("verify leader: %w", err)
		}
		// This sends heartbeats at once, and finds out about a newer term. Its own count may rest on answers to heartbeats
		// that were under way before the call, so it is not enough.
		switch err := l.await(ctx, done, func() error { return l.raft.VerifyLeader().Error() }); {
		case err == nil:
		case errors.Is(err, raft.ErrNotLeader), errors.Is(err, raft.ErrLeadershipLost):
			return fmt.Errorf("verify leader: %w", l.notLeader())
		case errors.Is(err, raft.ErrRaftShutdown):
			return fmt.Errorf("verify leader: %w", ErrClosed)
		default:
			return fmt.Errorf("verify leader: %w", err)
		}
		if l.acknowledged(term, began) {
			continue // to look at state and term again
		}
		select {
		case <-answered:
		case <-ctx.Done():
			return fmt.Errorf("verify leader: no majority answered: %w", ctx.Err())
		case <-l.stop:
			return fmt.Errorf("verify leader: %w", ErrClosed)
		}
	}
}

// acknowledged reports whether a majority of the voters, this one included, answered a request sent after since.
func (l *Log) acknowledged(term uint64, since time.Time) bool {
	voters, acknowledged := 0, 0
	for _, s := range l.raft.GetConfiguration().Configuration().Servers {
		if s.Suffrage != raft.Voter {
			continue
		}
		voters++
		if string(s.ID) == l.id {
			acknowledged++
		} else if p, ok := l.trans.of(s.ID, term); ok && p.Round.After(since) {
			acknowledged++
		}
	}
	return voters > 0 && acknowledged > voters/2
}

// Hasten lowers the timeouts of a follower because the leader is known to be dead. A false alarm is harmless: a leader
// that is heard of within FastHeartbeat keeps its followers. It ends by itself when a leader is found, after 5 s, or by
// Relax. It does nothing on a leader.
func (l *Log) Hasten() {
	if l.raft.State() == raft.Leader {
		return
	}
	l.setHastened(true)
	l.relaxAt.Reset(assistedFor)
}

// Stand is Hasten for a leader whose end is proven: this server need not wait for its silence. The first voter of those that
// are left, in the order of their ids, becomes a candidate at once, and each further one a moment after the one before, if
// no election has begun by then: the first may be dead too, or lack an entry. A server that is no voter only hastens. A leader
// that lives all the same is disturbed as by a transfer, and nothing worse.
func (l *Log) Stand(dead string) {
	l.Hasten()
	term := l.raft.CurrentTerm()
	place, votes := 0, false
	for _, s := range l.raft.GetConfiguration().Configuration().Servers {
		switch {
		case s.Suffrage != raft.Voter || string(s.ID) == dead:
		case string(s.ID) == l.id:
			votes = true
		case string(s.ID) < l.id:
			place++
		}
	}
	if !votes || !l.mayStand(dead, term) || l.stood.Swap(term) == term {
		return
	}
	done, err := l.enter()
	if err != nil {
		return
	}
	go func() {
		defer done()
		turn := time.NewTimer(time.Duration(place) * standEvery)
		defer turn.Stop()
		select {
		case <-turn.C:
		case <-l.stop:
			return
		}
		if l.trans.standNow(func() bool { return l.mayStand(dead, term) }, l.stop) {
			l.logger.Info("stands for election: the leader has ended", "leader", dead, "term", term)
		}
	}()
}

// mayStand reports whether this server still follows the dead leader, or nobody, in the term in which it died.
func (l *Log) mayStand(dead string, term uint64) bool {
	_, leader := l.raft.LeaderWithID()
	return l.raft.State() == raft.Follower && l.raft.CurrentTerm() == term && (leader == "" || string(leader) == dead)
}

// Relax restores the timeouts after Hasten.
func (l *Log) Relax() { l.setHastened(false) }

func (l *Log) setHastened(fast bool) {
	l.timeouts.Lock()
	defer l.timeouts.Unlock()
	if l.hastened.Swap(fast) == fast {
		return
	}
	c := l.raft.ReloadableConfig()
	c.HeartbeatTimeout, c.ElectionTimeout = l.cfg.Heartbeat, l.cfg.Election
	if fast {
		c.HeartbeatTimeout, c.ElectionTimeout = l.cfg.FastHeartbeat, l.cfg.FastHeartbeat
	}
	if err := l.raft.ReloadConfig(c); err != nil {
		l.logger.Warn("timeouts not changed", "fast", fast, "err", err)
	}
}
