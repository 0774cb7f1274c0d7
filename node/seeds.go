// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"phalanx/consensus"
)

// seedTimeout bounds the look at the addresses to join before anything is started. Whoever answers does so in a fraction.
const seedTimeout = 2 * time.Second

// errOtherJob: a daemon that holds our key runs another job.
var errOtherJob = errors.New("it runs another job with the same key")

// keyProblem tells a peer of another job from one that is out of reach: the first never becomes right by waiting.
func keyProblem(err error) *Problem {
	var unknown x509.UnknownAuthorityError
	switch {
	case errors.Is(err, errOtherJob):
		return &Problem{CodeAuth, fmt.Errorf("join: %w", err), "give the --job of the job to join, and an empty --dir"}
	case errors.As(err, &unknown):
		return &Problem{CodeAuth, errors.New("join: the daemon there holds another job key"), "copy the key file of the job to this host and give it with --key-file"}
	case errors.Is(err, consensus.ErrOtherJob):
		return &Problem{CodeAuth, fmt.Errorf("open the log: %w", err), "the directory was made with another --job or another key: give those (--key-file), or use an empty --dir"}
	}
	return nil
}

// askSeeds looks whether the addresses to join belong to this job, before a newcomer makes or starts anything. One that
// answers with the key is enough. Addresses that nobody answers at are tried again for ever by the upstream.
func (d *Daemon) askSeeds(dir string) error {
	if _, err := os.Stat(filepath.Join(dir, "raft")); len(d.cfg.Join) == 0 || err == nil {
		return nil // who has been in the job looks for those that it knows
	}
	ctx, cancel := context.WithTimeout(d.ctx, seedTimeout)
	defer cancel()
	answers := make(chan error, len(d.cfg.Join)) // one each: nobody waits for a reader
	for _, addr := range d.cfg.Join {
		go func() { // ends with its dial, by ctx at the latest
			c, err := d.listener.Dial(ctx, addr, ProtoStream)
			if err == nil {
				c.Close()
			}
			answers <- err
		}()
	}
	var refused *Problem
	var errs []error
	for range d.cfg.Join {
		err := <-answers
		if err == nil {
			return nil
		}
		if p := keyProblem(err); p != nil {
			refused = p
		}
		errs = append(errs, err)
	}
	if refused != nil {
		return refused
	}
	d.log.Warn("nobody answers where to join; tries on", "join", strings.Join(d.cfg.Join, ","), "error", errors.Join(errs...))
	return nil
}

// noLeader judges a round of dials that found no leader. A newcomer that meets another job only now, because nobody
// answered before, ends; one that has been in the job goes on looking.
func (d *Daemon) noLeader(err error) {
	p := keyProblem(err)
	if p == nil || len(d.cfg.Join) == 0 || d.raft.HasState() {
		return
	}
	d.post(func() {
		if d.state.Seq == 0 {
			d.end(Outcome{Code: p.Code, Reason: p.Err.Error(), Hint: p.Hint})
		}
	})
}

// forgetLog removes the log of a newcomer that was refused: it is empty and marked as another job's, and would stand in the
// way of the same command with the right key.
func (d *Daemon) forgetLog() {
	if d.outcome == nil || d.outcome.Code != CodeAuth {
		return
	}
	if err := os.RemoveAll(filepath.Join(d.paths.Member(d.cfg.Index), "raft")); err != nil {
		d.log.Warn("the log of a job that refused this host is left", "error", err)
	}
}
