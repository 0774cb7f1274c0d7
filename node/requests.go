// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"time"

	"phalanx"
	"phalanx/elastic"
)

func (v *memberView) reply(d *Daemon, r *Reply) {
	if v.conn != nil {
		v.conn.send(&Message{Reply: r})
	} else if v.local {
		d.replied(r)
	}
}

// request carries out an operator's wish, or answers a member's question.
func (a *arbiter) request(from phalanx.MemberID, r *Request, reply func(*Reply)) {
	var c elastic.Command
	switch why := a.impossible(r); {
	case why != nil:
		reply(why)
		return
	case r.Drain != "":
		c = elastic.Drain{Member: r.Drain, Why: r.Why}
	case r.Resize > 0:
		c = elastic.Resize{Want: r.Resize}
	case r.Place > 0:
		pin, err := a.place(from, r)
		if err != nil {
			reply(&Reply{Error: err.Error()})
			return
		}
		reply(&Reply{Place: pin})
		return
	case r.Stop:
		a.stop = true
		reply(&Reply{})
		return
	default:
		reply(&Reply{Error: "nothing was asked for", Code: CodeUsage})
		return
	}
	b, err := elastic.EncodeCommand(c)
	if err != nil {
		reply(&Reply{Error: err.Error()})
		return
	}
	d := a.d
	d.ends.Go(func() {
		ctx, cancel := context.WithTimeout(d.ctx, 5*time.Second)
		defer cancel()
		res, err := d.raft.Propose(ctx, b)
		words := ""
		if err != nil {
			words = err.Error()
		} else if x, refused := res.Response.(refusal); refused {
			words = x.err.Error()
		}
		d.post(func() { reply(&Reply{Error: words}) })
	})
}

// impossible says why a wish can never be fulfilled, nil when it may be.
func (a *arbiter) impossible(r *Request) *Reply {
	s := a.d.state
	switch {
	case r.Drain != "" && s.Member(r.Drain) == nil:
		return &Reply{Error: fmt.Sprintf("drain %s: the job has no such member", r.Drain), Code: CodeNotFound}
	case r.Resize > 0 && s.Spec != nil && r.Resize > s.Spec.Slots*s.GroupSize():
		return &Reply{Error: fmt.Sprintf("resize to %d ranks: each needs a slot, and the job has %d; it can have %d ranks", r.Resize, s.Spec.Slots, s.Spec.Slots*s.GroupSize()), Code: CodeUsage}
	}
	return nil
}

// logProblem is the end of a daemon that cannot read a command of the log: one of a newer release is skipped by nobody.
func logProblem(err error) error {
	if errors.Is(err, elastic.ErrUnknownCommand) {
		return &Problem{CodeNewer, fmt.Errorf("the log has a command of a newer release: %w", err), "start this host with the release that the others run"}
	}
	return &Problem{CodeFailed, fmt.Errorf("the log has stopped: %w", err), "the daemon is started again by phalanx run"}
}
