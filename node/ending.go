// SPDX-License-Identifier: Apache-2.0

package node

import (
	"cmp"
	"context"
	"os"
	"slices"
	"time"

	"phalanx"
	"phalanx/consensus"
	"phalanx/elastic"
	"phalanx/internal/failpoint"
)

// end ends the daemon with an outcome once the trainer has left.
func (d *Daemon) end(o Outcome) {
	if d.outcome != nil {
		return
	}
	d.outcome = &o
	if d.plain != nil {
		d.plain.terminate()
	}
	d.log.Info("ending", "code", o.Code, "reason", o.Reason)
	var t *trainerProcess
	if d.life != nil {
		t = d.life.trainer // the life is the loop's own
	}
	wait := d.cfg.Grace
	if wait <= 0 || o.Code != CodeOK && o.Code != CodePreempted {
		wait = 2 * time.Second
	}
	d.ends.Go(func() {
		ctx, cancel := context.WithTimeout(d.ctx, wait)
		defer cancel()
		for t != nil && t.alive() && ctx.Err() == nil {
			select {
			case <-ctx.Done():
			case <-time.After(10 * time.Millisecond): // an adopted trainer's end is not waited for by wait(2)
			}
		}
		t.kill()
		d.post(func() { d.farewell() })
	})
}

const (
	seeExplain = "see: phalanx status --explain"
	mendStore  = "mend the store and run the same command again: it goes on from the newest state in host memory or in the store"
)

// haltOutcome is the exit code of a job that was halted for good, and what to do next. failedAs is the code of the last failure of
// a trainer here, 0 for none.
func haltOutcome(kind elastic.HaltKind, dir string, failedAs int) (code int, hint string) {
	switch kind {
	case elastic.StoppedByOperator:
		return CodePreempted, "run the same command again to go on"
	case elastic.StoppedUnsaved:
		return CodeFailed, mendStore
	case elastic.SavesFail:
		return CodeUnsaved, mendStore
	case elastic.CrashLoop:
		return cmp.Or(failedAs, CodeFailed), "read the trainers' output in " + dir + "/log, mend the cause and run the same command again"
	case elastic.Poison:
		return CodeFailed, "mend what the step named above does to a trainer, or its samples, and run the same command again; " + seeExplain
	case elastic.OtherJob:
		return CodeUsage, "give it the settings of that training and enough steps, or another --job or --store, in another --dir; see: phalanx ckpt ls"
	case elastic.Misfit:
		return CodeNewer, "choose and rename tensors with --only, --rename and --strip-prefixes, cast with --cast, allow gaps with --partial, in another --dir; see: phalanx ckpt inspect"
	case elastic.Fenced:
		return CodeLocked, "end one of the two runs, or give it another --job or --store, in another --dir; see: phalanx ckpt ls"
	case elastic.Unreadable:
		return CodeIntegrity, "see: phalanx ckpt verify; mend the store and run the same command again, or start another --job in another --dir"
	default:
		return CodeFailed, seeExplain
	}
}

// checkEnd acts on the end of the job, whatever this daemon's life is at: the machine of a life that was fenced out, or that
// began when the job was over already, says nothing about it.
func (d *Daemon) checkEnd() {
	if d.outcome != nil {
		return
	}
	if why, over := d.state.EndsRun(d.started()); over {
		d.dismiss()
		d.jobEnded(why)
	}
}

// farewell hands leadership over and lets the last entry reach the others before the daemon's connections end.
func (d *Daemon) farewell() {
	others := !d.outcome.Done && d.state.Phase != elastic.Halted
	d.ends.Go(func() {
		ctx, cancel := context.WithTimeout(d.ctx, 5*time.Second)
		defer cancel()
		d.watchers.drain(ctx)
		if others {
			d.handOver(ctx)
		}
		d.post(func() {
			failpoint.Here("outcome-writing")
			if d.outcome.Done {
				for _, n := range d.paths.Lives(d.cfg.Index) {
					d.paths.Remove(d.cfg.Index, n)
				}
				d.saver.forgetCopies()
				_ = d.paths.memory.Remove(d.paths.Bells()) // whoever has it mapped keeps it
			}
			if err := writeJSON(d.paths.Outcome(d.cfg.Index), d.outcome); err != nil {
				d.log.Error("the outcome is not written", "error", err)
			} else if l := d.life; l != nil && l.machine != nil && !d.outcome.Done {
				d.leavePage(l)
			}
			failpoint.Here("outcome-written")
			d.ended = true
		})
	})
}

// joinEnd ends a daemon that came back when the others had left: a member of this host says that the job is done, and nobody is
// left who could lead. An outcome that is older than this start of the job says nothing about it.
func (d *Daemon) joinEnd() {
	if d.outcome != nil || d.cfg.Started.IsZero() {
		return
	}
	for i := range d.cfg.LocalSize {
		path := d.paths.Outcome(i)
		info, err := os.Stat(path)
		if err != nil || i == d.cfg.Index || info.ModTime().Before(d.cfg.Started) {
			continue
		}
		var o Outcome
		if readJSON(path, &o) == nil && o.Done && o.Code == CodeOK {
			d.log.Info("the others of this host have left a job that is done", "about", string(phalanx.NewMemberID(d.cfg.Host, i)))
			d.dismiss()
			d.end(o)
			return
		}
	}
}

// leavePage marks the page of a life that is over by the log: the member's next daemon is started by an operator who wants the
// member back, so it begins the next life and does not end once more as one that was drained.
func (d *Daemon) leavePage(l *life) {
	if m := d.state.Member(d.me()); m != nil && m.State == elastic.Gone && m.Incarnation == l.who.Incarnation {
		l.identify(d.paths.system, d.cfg.Index, true)
	}
}

// handOver leaves Raft to those who go on: leadership first, then the vote. They need a majority without this daemon before
// it goes, or two that leave at once take the quorum with them.
func (d *Daemon) handOver(ctx context.Context) {
	if d.raft.IsLeader() {
		if err := d.raft.Transfer(ctx); err != nil {
			d.log.Debug("leadership not handed over", "error", err)
		}
	}
	for ctx.Err() == nil {
		servers, err := d.raft.Servers()
		if err != nil || !slices.ContainsFunc(servers, func(s consensus.Server) bool { return s.ID == d.raft.ServerID() && s.Voter }) {
			return
		}
		select {
		case <-ctx.Done():
			d.log.Warn("leaves although it still votes in the log")
		case <-time.After(20 * time.Millisecond): // nothing signals a change of the configuration
		}
	}
}

// endTrainers ends the training processes of a member whose page does not tell them. It returns one whose end is to be waited for.
func (d *Daemon) endTrainers() *trainerProcess {
	found := findByVariable("PHALANX_SOCKET=" + d.paths.Socket(d.cfg.Index))
	if lives := d.paths.Lives(d.cfg.Index); d.plain != nil && len(lives) > 0 {
		if r, ok := readPlainRecord(d.paths, d.cfg.Index, phalanx.Incarnate{Member: d.me(), Incarnation: lives[len(lives)-1]}); ok && r.Exit == nil {
			found = append(found, findByToken(r.Token)...)
		}
	}
	var last *trainerProcess
	for _, t := range found {
		d.log.Info("ends a trainer that nobody can speak to", "pid", t.pid)
		t.kill()
		last = t
	}
	return last
}

// endOrphans ends trainers on this host whose member the log has evicted and whose daemon is dead, if this is the lowest
// living daemon of the host and no run is there to do it.
func (d *Daemon) endOrphans() {
	for _, s := range d.siblings[:d.cfg.Index] {
		if s != nil && s.daemon {
			return
		}
	}
	for _, s := range d.siblings[:d.cfg.LocalSize] {
		if s == nil || s.daemon || !s.trainer || s.identity.TrainerPID == 0 {
			continue
		}
		m := d.state.Member(s.identity.Member)
		if m != nil && (m.Incarnation > s.life || m.Incarnation == s.life && m.State == elastic.Gone) {
			d.log.Info("ends an orphan trainer", "about", string(s.identity.Member), "pid", s.identity.TrainerPID)
			(&trainerProcess{system: d.paths.system, pid: s.identity.TrainerPID, start: s.identity.TrainerStart}).kill()
		}
	}
}
