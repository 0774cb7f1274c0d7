// SPDX-License-Identifier: Apache-2.0

package consensus

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hashicorp/raft"
)

// Server is one member of the Raft configuration.
type Server struct {
	ID    string `json:"id"`
	Addr  string `json:"addr"` // as it was when the server was added
	Voter bool   `json:"voter"`
}

// Servers returns the latest configuration that this server knows of, in its order.
func (l *Log) Servers() ([]Server, error) {
	future := l.raft.GetConfiguration()
	if err := future.Error(); err != nil {
		return nil, fmt.Errorf("read configuration: %w", err)
	}
	return serversOf(future.Configuration()), nil
}

func serversOf(configuration raft.Configuration) []Server {
	servers := make([]Server, 0, len(configuration.Servers))
	for _, s := range configuration.Servers {
		servers = append(servers, Server{string(s.ID), string(s.Address), s.Suffrage == raft.Voter})
	}
	return servers
}

// PeerProgress returns what this leader has seen of another server in its term.
func (l *Log) PeerProgress(id string) (Progress, bool) {
	if l.raft.State() != raft.Leader {
		return Progress{}, false
	}
	return l.trans.of(raft.ServerID(id), l.raft.CurrentTerm())
}

// CaughtUp reports whether a server answered this leader lately and has all but the last few committed entries.
func (l *Log) CaughtUp(id string) bool {
	if id == l.id {
		return l.IsLeader()
	}
	p, ok := l.PeerProgress(id)
	return ok && p.Match > 0 && p.Match+caughtUpEntries >= l.raft.CommitIndex() && time.Since(p.Contact) < l.cfg.Heartbeat
}

// AddNonvoter adds a server that receives the log and does not vote. Adding one that is there already changes its stored
// address; a voter stays one. Leader only.
func (l *Log) AddNonvoter(ctx context.Context, id, addr string) error {
	return l.configure(ctx, "add", id, func(_ *Server, index uint64, wait time.Duration) (raft.IndexFuture, error) {
		return l.raft.AddNonvoter(raft.ServerID(id), raft.ServerAddress(addr), index, wait), nil
	})
}

// Promote makes a caught-up non-voter a voter; ErrNotCaughtUp when it was not seen to be. Leader only.
func (l *Log) Promote(ctx context.Context, id string) error {
	return l.configure(ctx, "promote", id, func(s *Server, index uint64, wait time.Duration) (raft.IndexFuture, error) {
		switch {
		case s == nil:
			return nil, ErrNoServer
		case s.Voter:
			return nil, nil
		case !l.CaughtUp(id): // raft itself would count it in every majority at once
			return nil, ErrNotCaughtUp
		}
		return l.raft.AddVoter(raft.ServerID(id), raft.ServerAddress(s.Addr), index, wait), nil
	})
}

// Demote makes a voter a non-voter. Leader only.
func (l *Log) Demote(ctx context.Context, id string) error {
	return l.configure(ctx, "demote", id, func(s *Server, index uint64, wait time.Duration) (raft.IndexFuture, error) {
		switch {
		case s == nil:
			return nil, ErrNoServer
		case !s.Voter:
			return nil, nil
		}
		return l.raft.DemoteVoter(raft.ServerID(id), index, wait), nil
	})
}

// Remove takes a server out of the configuration; it is not an error when it is not in it. It can come back only as a new
// server: see Wipe. Leader only.
func (l *Log) Remove(ctx context.Context, id string) error {
	err := l.configure(ctx, "remove", id, func(s *Server, index uint64, wait time.Duration) (raft.IndexFuture, error) {
		if s == nil {
			return nil, nil
		}
		return l.raft.RemoveServer(raft.ServerID(id), index, wait), nil
	})
	if err == nil {
		l.trans.forget(raft.ServerID(id))
	}
	return err
}

// Perform carries out one change of a plan.
func (l *Log) Perform(ctx context.Context, change Change) error {
	switch change.Kind {
	case Add:
		return l.AddNonvoter(ctx, change.ID, change.Addr)
	case Promote:
		return l.Promote(ctx, change.ID)
	case Demote:
		return l.Demote(ctx, change.ID)
	case Remove:
		return l.Remove(ctx, change.ID)
	default:
		return fmt.Errorf("perform change of server %s: unknown kind %q", change.ID, change.Kind)
	}
}

// configure makes one configuration change, based on the configuration it looked at, while no other is under way. decide
// returns no future when there is nothing to do.
func (l *Log) configure(ctx context.Context, operation, id string, decide func(*Server, uint64, time.Duration) (raft.IndexFuture, error)) error {
	ctx, cancel := withDefaultWait(ctx)
	defer cancel()
	err := l.exclusively(ctx, func(done func()) error {
		if l.raft.State() != raft.Leader {
			done()
			return l.notLeader()
		}
		current := l.raft.GetConfiguration()
		var server *Server
		for _, s := range serversOf(current.Configuration()) {
			if s.ID == id {
				server = &s
			}
		}
		deadline, _ := ctx.Deadline()
		return l.await(ctx, done, func() error {
			future, err := decide(server, current.Index(), max(time.Until(deadline), time.Millisecond))
			if err != nil || future == nil {
				return err
			}
			return future.Error()
		})
	})
	switch {
	case err == nil:
		return nil
	case errors.Is(err, raft.ErrNotLeader):
		err = l.notLeader()
	case errors.Is(err, raft.ErrLeadershipLost):
		err = ErrLeadershipLost
	case errors.Is(err, raft.ErrRaftShutdown):
		err = ErrClosed
	}
	return fmt.Errorf("%s server %s: %w", operation, id, err)
}

// exclusively runs f as the only change under way. f must see to it that done is called.
func (l *Log) exclusively(ctx context.Context, f func(done func()) error) error {
	select {
	case l.change <- struct{}{}:
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", ErrBusy, ctx.Err())
	case <-l.stop:
		return ErrClosed
	}
	defer func() { <-l.change }()
	done, err := l.enter()
	if err != nil {
		return err
	}
	return f(done)
}

// Transfer hands leadership to the caught-up voter that answered last, and returns when this server does not lead any
// more. ErrNotCaughtUp when there is none. No change may be under way, and commands proposed meanwhile are refused.
func (l *Log) Transfer(ctx context.Context) error {
	ctx, cancel := withDefaultWait(ctx)
	defer cancel()
	err := l.exclusively(ctx, func(done func()) error {
		if l.raft.State() != raft.Leader {
			done()
			return l.notLeader()
		}
		target, ok := l.heir()
		if !ok {
			done()
			return ErrNotCaughtUp
		}
		err := l.await(ctx, done, func() error {
			return l.raft.LeadershipTransferToServer(raft.ServerID(target.ID), raft.ServerAddress(target.Addr)).Error()
		})
		if errors.Is(err, raft.ErrLeadershipTransferInProgress) {
			l.watchTransfer()
			return ErrBusy
		}
		l.transfer.Store(0)
		return err
	})
	if err != nil {
		return fmt.Errorf("transfer leadership: %w", err)
	}
	return nil
}

// heir picks the voter to hand leadership to. It must have the whole log: the library waits for one that has not in a way
// that can block it for good.
func (l *Log) heir() (heir Server, ok bool) {
	last := l.raft.LastIndex()
	var contact time.Time
	for _, s := range serversOf(l.raft.GetConfiguration().Configuration()) {
		if !s.Voter || s.ID == l.id {
			continue
		}
		p, seen := l.PeerProgress(s.ID)
		if seen && p.Match >= last && time.Since(p.Contact) < l.cfg.Heartbeat && p.Contact.After(contact) {
			heir, contact, ok = s, p.Contact, true
		}
	}
	return heir, ok
}

// watchTransfer is told each time that the library says it is in a transfer. A transfer ends within the election timeout;
// one that is still there after several is the known deadlock, and only a new server gets out of it.
func (l *Log) watchTransfer() {
	now := time.Now()
	since := l.transfer.Load()
	if since == 0 {
		l.transfer.CompareAndSwap(0, now.UnixNano())
		return
	}
	switch stuck := now.Sub(time.Unix(0, since)); {
	case stuck > 20*l.cfg.Election: // two transfers far apart
		l.transfer.Store(now.UnixNano())
	case stuck > 4*l.cfg.Election:
		go l.fail(fmt.Errorf("%w (%v)", ErrTransferStuck, stuck.Round(time.Millisecond)))
	}
}
