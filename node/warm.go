// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"phalanx"
	"phalanx/client/wire"
	"phalanx/membership"
)

// Processes that were started ahead (run --warm) wait below run until a member needs a trainer. Run is their parent: it starts
// them, hands them over and reaps them, so how one ended comes to a daemon by a file. Without a run there are none.

// warmWait bounds a takeover; then the trainer is started as usual.
const warmWait = time.Second

// WarmState is DIR/warm/state.json: the processes that were started ahead on this host. Run writes it.
type WarmState struct {
	Want      int           `json:"want"`
	Processes []WarmProcess `json:"processes,omitempty"`
	Taken     []WarmProcess `json:"taken,omitempty"` // that live and are trainers now
	Why       string        `json:"why,omitempty"`   // what hinders those that are missing
}

// WarmProcess is one of them.
type WarmProcess struct {
	PID    int              `json:"pid"`
	Start  uint64           `json:"start"`
	Ready  bool             `json:"ready,omitempty"` // it waits for a place; else it is starting
	UnixNS int64            `json:"unix_ns"`         // since when
	Member phalanx.MemberID `json:"member,omitempty"`
	Token  string           `json:"token,omitempty"` // of the start that it was taken for
}

// warmExit is DIR/warm/exit.PID.START: how one ended that had been taken.
type warmExit struct {
	Code int `json:"code"` // 128 and more: by a signal
}

// Warm is the directory of the processes that were started ahead.
func (p Paths) Warm() string { return filepath.Join(p.Dir, "warm") }

// WarmSocket is where they wait, and where daemons ask for them. Like Socket, it is short.
func (p Paths) WarmSocket() string {
	if s := filepath.Join(p.Warm(), "sock"); len(s) < 100 {
		return s
	}
	return filepath.Join(os.TempDir(), "phalanx."+p.place+".warm.sock")
}

// WarmLog is the output of the one with a number before it is taken.
func (p Paths) WarmLog(host string, number int) string {
	return filepath.Join(p.Dir, "log", fmt.Sprintf("warm.%s.%d.log", host, number))
}

func (p Paths) warmExit(pid int, start uint64) string {
	return filepath.Join(p.Warm(), fmt.Sprintf("exit.%d.%d", pid, start))
}

// WriteWarmState tells the state to who asks for the status of this host, and to daemons.
func WriteWarmState(p Paths, s *WarmState) error {
	return writeJSON(filepath.Join(p.Warm(), "state.json"), s)
}

// ReadWarmState is what a run has told last, nil when nobody did. What it says of processes holds if they live.
func ReadWarmState(p Paths) *WarmState {
	s := new(WarmState)
	if readJSON(filepath.Join(p.Warm(), "state.json"), s) != nil {
		return nil
	}
	return s
}

// NoteWarmExit keeps the exit status of one that was taken for the daemon whose trainer it was.
func NoteWarmExit(p Paths, pid int, start uint64, code int) error {
	return writeJSON(p.warmExit(pid, start), warmExit{code})
}

// ForgetWarm removes what an earlier run has noted and nobody has asked for.
func (p Paths) ForgetWarm() error {
	names, err := filepath.Glob(filepath.Join(p.Warm(), "exit.*"))
	for _, name := range names {
		err = errors.Join(err, os.Remove(name))
	}
	return err
}

// takeWarm asks for a process that was started ahead and makes it the trainer of a life. It returns nil when there is none:
// then one is started as usual. exited is called once, from another goroutine.
func (d *Daemon) takeWarm(who phalanx.Incarnate, token string, env []string, exited func(how string, code int)) *trainerProcess {
	if d.cfg.Warm == 0 {
		return nil
	}
	began := time.Now()
	pid, start, err := askWarm(d.ctx, d.paths, wire.WarmMessage{
		Op: wire.WarmTake, Member: string(who.Member), Token: token, Env: variables(env), Log: d.paths.TrainerLog(who)})
	if err != nil {
		d.log.Info("no process that was started ahead; one is started now", "why", err)
		return nil
	}
	d.log.Info("a process that was started ahead takes over", "incarnation", uint64(who.Incarnation), "pid", pid, "took", time.Since(began))
	t := &trainerProcess{system: d.paths.system, pid: pid, start: start}
	if exited != nil {
		d.ends.Go(func() {
			if t.gone(d.ctx, time.Duration(1<<62)) {
				exited(awaitWarmExit(d.ctx, d.paths, pid, start))
			}
		})
	}
	return t
}

// errNoWarm is the answer that none waits.
var errNoWarm = errors.New("none is ready")

func askWarm(ctx context.Context, p Paths, m wire.WarmMessage) (pid int, start uint64, err error) {
	ctx, cancel := context.WithTimeout(ctx, warmWait)
	defer cancel()
	conn, err := new(net.Dialer).DialContext(ctx, "unix", p.WarmSocket())
	if err != nil {
		return 0, 0, fmt.Errorf("no run holds any: %w", err)
	}
	defer conn.Close()
	deadline, _ := ctx.Deadline()
	_ = conn.SetDeadline(deadline) // a unix socket has deadlines
	if err := wire.WriteWarm(conn, m); err != nil {
		return 0, 0, err
	}
	a, err := wire.ReadWarm(conn)
	switch {
	case err != nil:
		return 0, 0, err
	case a.Op != wire.WarmTaken || a.PID <= 1:
		return 0, 0, errNoWarm
	}
	return a.PID, a.Start, nil
}

// variables is an environment by name.
func variables(env []string) map[string]string {
	out := map[string]string{}
	for _, e := range env {
		name, value, _ := strings.Cut(e, "=")
		out[name] = value
	}
	return out
}

// awaitWarmExit waits a moment for the word of run on how its child ended.
func awaitWarmExit(ctx context.Context, p Paths, pid int, start uint64) (how string, code int) {
	path := p.warmExit(pid, start)
	for end := time.Now().Add(2 * time.Second); time.Now().Before(end) && ctx.Err() == nil; {
		var e warmExit
		if readJSON(path, &e) == nil {
			_ = os.Remove(path) // it was for this one reader
			if e.Code > 128 {
				return killedBy(syscall.Signal(e.Code - 128))
			}
			return fmt.Sprintf("exited with status %d", e.Code), e.Code
		}
		select {
		case <-time.After(5 * time.Millisecond): // a file appears: nothing signals it
		case <-ctx.Done():
		}
	}
	return "its process has ended and nobody knows how", -1
}

// findWarm finds the process that was taken for a start whose daemon ended before it noted it.
func findWarm(p Paths, token string) []*trainerProcess {
	s := ReadWarmState(p)
	if s == nil {
		return nil
	}
	var out []*trainerProcess
	for _, t := range s.Taken {
		if t.Token == token && membership.Alive(t.PID, t.Start) {
			out = append(out, &trainerProcess{system: p.system, pid: t.PID, start: t.Start})
		}
	}
	return out
}
