// SPDX-License-Identifier: Apache-2.0

package node

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"phalanx/client/wire"
	"phalanx/membership"
)

// System is what a daemon asks of its operating system besides files, memory and network: the kernel's, or a simulated host's.
type System interface {
	// BootID names this boot: pids and start times of another one mean nothing.
	BootID() string
	// Self is the calling daemon's pid and start time.
	Self() (pid int, start uint64)
	// BoottimeNS is the clock of leases: it runs on through suspend and is the same for all processes of the host.
	BoottimeNS() int64
	// Stat reads a process; the error wraps membership.ErrNoProcess when there is none.
	Stat(pid int) (membership.ProcStat, error)
	// Alive says whether this very process has not ended.
	Alive(pid int, start uint64) bool
	// Start starts a training process that outlives the daemon. exited is called once, from another goroutine.
	Start(c Command, exited func(how string, code int)) (pid int, start uint64, err error)
	// Kill ends this very process and all that it forked.
	Kill(pid int, start uint64)
	// Watch returns a watcher of processes' ends.
	Watch(log *slog.Logger) (ProcWatcher, error)
	// ListenLocal makes the socket of the trainer and the command line, for this user alone.
	ListenLocal(path string) (net.Listener, error)
	// PeerUID is the user at the other end of a connection to it, -1 when that is not known.
	PeerUID(c net.Conn) int
	// Prefer puts this process before the trainers where that is allowed.
	Prefer() bool
}

// Command is a training process to start.
type Command struct {
	Args []string
	Env  []string // on top of the daemon's own
	Log  string   // the file that its output is added to
}

// ProcWatcher reports the ends of processes, as membership.ProcWatch does.
type ProcWatcher interface {
	Watch(pid int, start uint64, key any) error
	Unwatch(key any)
	Exits() <-chan membership.ProcExit
	Close() error
}

// kernel is the operating system that this process runs on.
type kernel struct{}

func (kernel) BootID() string                            { return membership.BootID() }
func (kernel) Self() (int, uint64)                       { return selfProcess() }
func (kernel) BoottimeNS() int64                         { return wire.BoottimeNS() }
func (kernel) Stat(pid int) (membership.ProcStat, error) { return membership.ReadStat(pid) }
func (kernel) Alive(pid int, start uint64) bool          { return membership.Alive(pid, start) }
func (kernel) Prefer() bool                              { return unix.Setpriority(unix.PRIO_PROCESS, 0, -5) == nil }

func (kernel) Watch(log *slog.Logger) (ProcWatcher, error) {
	w, err := membership.NewProcWatch(log)
	if err != nil {
		return nil, err // not a nil *ProcWatch in an interface
	}
	return w, nil
}

// selfProcess is this process's pid and start time, which name it for ever within this boot.
var selfProcess = sync.OnceValues(func() (int, uint64) {
	start, _ := membership.StartTime(os.Getpid())
	return os.Getpid(), start
})

// Start starts the command in a process group of its own. No pipe and no parent-death signal ties it to the daemon, its
// output goes to a file.
func (kernel) Start(c Command, exited func(how string, code int)) (int, uint64, error) {
	if err := os.MkdirAll(filepath.Dir(c.Log), 0o755); err != nil {
		return 0, 0, fmt.Errorf("start trainer: %w", err)
	}
	out, err := os.OpenFile(c.Log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return 0, 0, fmt.Errorf("start trainer: %w", err)
	}
	defer out.Close()
	cmd := exec.Command(c.Args[0], c.Args[1:]...)
	cmd.Stdout, cmd.Stderr = out, out
	cmd.Env = append(os.Environ(), c.Env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		return 0, 0, fmt.Errorf("start trainer %q: %w", c.Args[0], err)
	}
	start, _ := membership.StartTime(cmd.Process.Pid) // 0 when it has ended already; wait tells
	_ = syscall.Setpriority(syscall.PRIO_PROCESS, cmd.Process.Pid, 0)
	go func() { // ends with the process
		err := cmd.Wait()
		how, code := describeExit(cmd.ProcessState, err)
		exited(how, code)
	}()
	return cmd.Process.Pid, start, nil
}

func describeExit(s *os.ProcessState, err error) (string, int) {
	if s == nil {
		return fmt.Sprintf("wait failed: %v", err), -1
	}
	if w, ok := s.Sys().(syscall.WaitStatus); ok && w.Signaled() {
		return killedBy(w.Signal())
	}
	return fmt.Sprintf("exited with status %d", s.ExitCode()), s.ExitCode()
}

func killedBy(s syscall.Signal) (how string, code int) {
	return fmt.Sprintf("killed by signal %d (%s)", int(s), s), 128 + int(s)
}

// Kill ends the whole process group: forked data workers must not outlive their trainer.
func (kernel) Kill(pid int, start uint64) {
	if now, err := membership.StartTime(pid); err == nil && now != 0 && now != start {
		return // the pid belongs to somebody else by now
	}
	if err := syscall.Kill(-pid, syscall.SIGKILL); errors.Is(err, syscall.ESRCH) {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
}

func (kernel) ListenLocal(path string) (net.Listener, error) {
	_ = os.Remove(path) // of a daemon before this one; the member's lock is held
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

func (kernel) PeerUID(c net.Conn) int {
	u, ok := c.(*net.UnixConn)
	if !ok {
		return -1
	}
	raw, err := u.SyscallConn()
	if err != nil {
		return -1
	}
	uid := -1
	_ = raw.Control(func(fd uintptr) {
		if cred, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
			uid = int(cred.Uid)
		}
	})
	return uid
}

// bootWords is a boot id as two words.
func bootWords(s System) (uint64, uint64) {
	var b [16]byte
	if n, err := hex.Decode(b[:], []byte(strings.ReplaceAll(s.BootID(), "-", ""))); err != nil || n != len(b) {
		return 0, 0
	}
	return binary.BigEndian.Uint64(b[:8]), binary.BigEndian.Uint64(b[8:])
}
