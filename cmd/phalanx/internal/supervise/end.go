// SPDX-License-Identifier: Apache-2.0

package supervise

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"phalanx/cmd/phalanx/internal/control"
	"phalanx/node"
)

// killTime bounds how long the killed may take to end; a process in an uninterruptible call ends later, by itself.
const killTime = 3 * time.Second

// take acts on a signal to run. It reports whether everything is to be killed.
func (s *supervisor) take(sig os.Signal) (kill bool) {
	switch sig {
	case unix.SIGTERM, unix.SIGINT:
		if s.stop != "" && sig == unix.SIGINT {
			return true
		}
		if s.stop == "" {
			s.Log.Info("stopping: the step in progress is finished and saved; interrupt again to kill", "signal", unix.SignalName(sig.(unix.Signal)))
			s.stopAll(unix.SignalName(sig.(unix.Signal)) + " to phalanx run")
		}
	case unix.SIGUSR1, unix.SIGUSR2, unix.SIGHUP, unix.SIGWINCH:
		for _, pid := range s.trainers() {
			_ = unix.Kill(-pid, sig.(unix.Signal)) // ended meanwhile
		}
	}
	return false
}

// stopAll asks every living daemon to leave in order. Those that are started later are asked too.
func (s *supervisor) stopAll(why string) {
	if s.stop != "" {
		return
	}
	s.stop = why
	if s.warm != nil {
		s.warm.end() // nobody takes over any more, and the last save needs the processors
	}
	for _, d := range s.daemons {
		if d.pid != 0 {
			s.askToStop(d)
		} else if d.pause != nil && d.pause.Stop() { // it is started to leave in order, now
			s.again <- d.index
		}
	}
}

// askToStop asks until the daemon has answered or died. A daemon that is just starting has no socket yet.
func (s *supervisor) askToStop(d *daemon) {
	ctx, cancel := context.WithCancel(s.ctx)
	d.stopSent = cancel
	why, dir, index, pid := s.stop, s.dir, d.index, d.pid
	go func() { // ends with the answer, with the daemon or with the run
		for ctx.Err() == nil {
			if l, ok := control.FindOne(dir, index); ok && l.PID == pid {
				call, done := context.WithTimeout(ctx, callTimeout)
				err := control.Stop(call, l, why)
				done()
				var refused *control.Refused
				if err == nil || errors.As(err, &refused) && refused.Status < 500 {
					return
				}
			}
			select {
			case <-ctx.Done():
			case <-time.After(stopRetry):
			}
		}
	}()
}

// trainers are the pids of this host's training processes, as any daemon here knows them.
func (s *supervisor) trainers() []int {
	ctx, cancel := context.WithTimeout(s.ctx, lookTimeout)
	defer cancel()
	st, err := control.AnyStatus(ctx, s.dir, false)
	if err != nil {
		return nil
	}
	return localTrainers(st, s.Settings.Host)
}

func localTrainers(st *node.Status, host string) []int {
	var pids []int
	for _, m := range st.Members {
		if m.Host == host && m.TrainerPID > 1 {
			pids = append(pids, m.TrainerPID)
		}
	}
	return pids
}

// hurry ends daemons that do not end by themselves: one whose outcome is written has nothing left to lose, and one that is
// still there long after the job was done waits for nobody.
func (s *supervisor) hurry(now time.Time) {
	for _, d := range s.daemons {
		if d.pid == 0 {
			continue
		}
		if d.endingAt.IsZero() && readOutcome(s.dir, d.index) != nil {
			d.endingAt = now
		}
		if s.late(now) || !d.endingAt.IsZero() && now.Sub(d.endingAt) > leaveTime {
			s.Log.Warn("daemon does not end and is killed; the job has ended for it", "member", s.Settings.Member(d.index), "pid", d.pid)
			_ = unix.Kill(d.pid, unix.SIGKILL) // has ended meanwhile
		}
	}
}

// giveUpTime bounds how long the rest may take to leave in order after this run has failed.
func (s *supervisor) giveUpTime() time.Duration {
	return 2*time.Duration(s.Settings.Grace) + 30*time.Second
}

// killAll kills the daemons and trainers of this host. Daemons go first, so that they start no trainer; a trainer is found by
// what they said before, or as the orphan that it becomes.
func (s *supervisor) killAll() {
	trainers := s.trainers()
	for _, d := range s.daemons {
		if d.pid != 0 {
			_ = unix.Kill(d.pid, unix.SIGKILL) // has ended already
		}
	}
	for _, pid := range trainers {
		_ = unix.Kill(-pid, unix.SIGKILL)
	}
	// A process may come here while a look is under way that has passed its place: only the second empty look in a row counts.
	deadline := time.Now().Add(killTime)
	for empty := 0; empty < 2 && time.Now().Before(deadline); {
		s.reap()
		left := orphans()
		for _, pid := range left {
			if unix.Kill(-pid, unix.SIGKILL) != nil {
				_ = unix.Kill(pid, unix.SIGKILL)
			}
		}
		if empty++; len(left) > 0 {
			empty = 0
			time.Sleep(10 * time.Millisecond) // until the kernel has ended them
		}
	}
}

// orphans are this process's living children, its own and those that came to it.
func orphans() []int {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	var out []int
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil && parentOf(pid) == os.Getpid() {
			out = append(out, pid)
		}
	}
	return out
}

// parentOf is the parent of a living process, 0 when it has ended.
func parentOf(pid int) int {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	// The name, in parentheses, may hold anything.
	fields := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
	if len(fields) < 18 || fields[0] == "X" {
		return 0
	}
	// The first thread of a killed process may be a zombie while others still end: then it is not over.
	if fields[0] == "Z" && (fields[17] == "0" || fields[17] == "1") {
		return 0
	}
	parent, _ := strconv.Atoi(fields[1])
	return parent
}
