// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"phalanx"
	"phalanx/consensus"
	"phalanx/elastic"
)

// A job may live for months and see any number of hosts, each under a name of its own, and any number of lives of each
// member. What a daemon remembers of those that are over is bounded here; elastic bounds what the log does.
const (
	forgetEvery = 10 * time.Second
	// strangers is how many daemons are remembered that are no living members: newcomers, and those that may come back.
	strangers = 256
)

// forget looks now and then for what is not worth being remembered.
func (d *Daemon) forget(now time.Time) {
	if now.Sub(d.forgot) < forgetEvery {
		return
	}
	d.forgot = now
	if servers, err := d.raft.Servers(); err == nil { // else the log is closing
		d.forgetBut(servers)
	}
}

// forgetBut drops what is known of daemons that are neither living members nor among the servers of the log.
func (d *Daemon) forgetBut(servers []consensus.Server) {
	lives := func(id phalanx.MemberID) bool {
		m := d.state.Member(id)
		return m != nil && m.State != elastic.Gone
	}
	if d.roster.forget(strangers, func(p Peer) bool {
		return lives(p.Member) || slices.ContainsFunc(servers, func(s consensus.Server) bool { return s.ID == p.Server })
	}) {
		d.keepRoster()
	}
	if d.lead != nil {
		d.lead.forget(strangers, lives)
	}
}

// keepRoster writes the roster for a restart and tells gossip.
func (d *Daemon) keepRoster() {
	if err := d.roster.save(); err != nil {
		d.log.Warn("the roster is not kept for a restart", "error", err)
	}
	d.rejoinGossip()
}

// forget drops the views of members that are gone and silent, beyond room of them: those first that were lost first.
func (a *arbiter) forget(room int, lives func(phalanx.MemberID) bool) {
	var lost []*memberView
	for id, v := range a.members {
		if !v.local && v.conn == nil && !lives(id) && a.d.state.World.SeatOf(id) == nil {
			lost = append(lost, v)
		}
	}
	if len(lost) <= room {
		return
	}
	slices.SortFunc(lost, func(x, y *memberView) int { return x.lost.Compare(y.lost) })
	for _, v := range lost[:len(lost)-room] {
		delete(a.members, v.id)
	}
}

// pruneLogs removes the output of old lives of a member, but for the newest keep of them, of which the one that begins is one.
// Nothing is removed when keep is 0.
func pruneLogs(p Paths, begins phalanx.Incarnate, keep int) error {
	id := begins.Member
	if keep < 1 {
		return nil
	}
	dir := filepath.Dir(p.TrainerLog(begins))
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // nothing was written yet
	}
	if err != nil {
		return fmt.Errorf("prune logs of %s: %w", id, err)
	}
	lives := []phalanx.Incarnation{begins.Incarnation} // its file is made when its trainer starts
	for _, e := range entries {
		if n, ok := logLife(e.Name(), id); ok && !slices.Contains(lives, n) {
			lives = append(lives, n)
		}
	}
	sortIncarnations(lives)
	var errs []error
	for _, n := range lives[:max(0, len(lives)-keep)] {
		who := phalanx.Incarnate{Member: id, Incarnation: n}
		path := p.TrainerLog(who)
		for _, f := range []string{path, path + ".1", p.TrainerError(who)} {
			if err := os.Remove(f); err != nil && !errors.Is(err, fs.ErrNotExist) {
				errs = append(errs, err)
			}
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("prune logs of %s: %w", id, err)
	}
	return nil
}

// logLife is the life whose output a file holds, if it is one of this member's. It reads the names that Paths.TrainerLog and
// rotate make.
func logLife(name string, id phalanx.MemberID) (phalanx.Incarnation, bool) {
	rest, ours := strings.CutPrefix(name, id.FileName()+".")
	number, is := strings.CutSuffix(strings.TrimSuffix(rest, ".1"), ".log")
	n, err := strconv.ParseUint(number, 10, 63)
	if !ours || !is || err != nil || n == 0 || strconv.FormatUint(n, 10) != number {
		return 0, false
	}
	return phalanx.Incarnation(n), true
}
