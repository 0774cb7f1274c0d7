// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"fmt"
	"slices"
	"syscall"
	"time"

	"phalanx"
	"phalanx/client/wire"
)

// longestPause is between two tries of what something hinders: whoever has made room does not wait long.
const longestPause = 5 * time.Second

// heals reports whether what failed may go well later without anybody starting anything anew: a full disk is emptied, other
// processes end, a file server comes back.
func heals(err error) bool {
	return errors.Is(err, wire.ErrNoSpace) || slices.ContainsFunc([]error{
		syscall.ENOSPC, syscall.EDQUOT, syscall.EIO, syscall.EROFS, syscall.EMFILE, syscall.ENFILE, syscall.EAGAIN, syscall.ENOMEM,
		syscall.ENOBUFS, syscall.EINTR, syscall.ETIMEDOUT, syscall.ESTALE, syscall.ENOLCK, syscall.ETXTBSY,
	}, func(e error) bool { return errors.Is(err, e) })
}

// hinderedPause is how long to wait after so many tries in a row.
func hinderedPause(tries int) time.Duration {
	return min(50*time.Millisecond<<min(tries, 10), longestPause)
}

// hinder puts off the start of the trainer, or of its next life, for as long as the job lives if what stands in the way can heal.
func (d *Daemon) hinder(err error) {
	d.starting = d.starting || heals(err) // nothing else begins one meanwhile
	d.afterHindrance(err, func() {
		d.starting = false
		d.ensureTrainer()
	})
}

// afterHindrance calls again in the loop after a pause that grows with every try, or gives the member up when nothing heals
// what is wrong.
func (d *Daemon) afterHindrance(err error, again func()) {
	if !heals(err) {
		d.giveUp(err.Error())
		return
	}
	wait := hinderedPause(d.tries)
	if d.tries++; d.tries%16 == 1 {
		d.log.Warn("the trainer cannot be started now; tries again until it can", "error", err)
	}
	d.hindered, d.dirty = err.Error(), true
	d.ends.Go(func() {
		select {
		case <-time.After(wait):
			d.post(again)
		case <-d.ctx.Done():
		}
	})
}

// unhinder notes that a trainer was started.
func (d *Daemon) unhinder() {
	if d.tries > 0 {
		d.log.Info("what kept the trainer from being started is over", "tries", d.tries, "was", d.hindered)
	}
	d.hindered, d.tries, d.dirty = "", 0, true
}

// hindrances says whose trainers are waited for, and why: of this host's own member, and from the leader of all.
func (d *Daemon) hindrances() []string {
	whys := map[phalanx.MemberID]string{d.me(): d.hindered}
	if d.lead != nil {
		for id, v := range d.lead.members {
			if v.report != nil && v.conn != nil {
				whys[id] = v.report.Note
			}
		}
	}
	var out []string
	for id, why := range whys {
		if why != "" {
			out = append(out, fmt.Sprintf("the trainer of %s cannot be started now: %s", id, why))
		}
	}
	slices.Sort(out)
	return out
}
