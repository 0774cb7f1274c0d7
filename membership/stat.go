// SPDX-License-Identifier: Apache-2.0

package membership

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// ErrNoProcess is returned when no process has the pid, or when another one has it by now.
var ErrNoProcess = errors.New("no such process")

// ProcStat is the part of /proc/PID/stat that tells lives apart and shows whether they run.
type ProcStat struct {
	State     byte   // R running, S sleeping, D disk wait, T stopped, t traced, Z zombie, X dead, I idle
	UserTicks uint64 // CPU time in user mode, in clock ticks (10 ms on Linux)
	SysTicks  uint64 // CPU time in the kernel, in clock ticks
	Threads   int
	Start     uint64 // clock ticks from boot to the start of the process: with the pid it names one life
	ExitCode  int    // as wait tells it, once it is decided; 0 before, and where the kernel does not show it to this user
	Ending    bool   // the first thread is at its end: it exits, or is killed by a signal
}

// Dead reports whether the process has ended and only waits to be reaped. A thread group whose first thread has left
// while others run also shows Z; it is not dead.
func (s ProcStat) Dead() bool { return (s.State == 'Z' || s.State == 'X') && s.Threads <= 1 }

// Killed returns the signal by which the process ends, 0 while none is known. It is decided before the first thread ends and
// never taken back: nothing of the program runs any more, although its memory may be unmapped for long. Until then the kernel
// shows in the same place the signal that stopped the process, and any signal (a trap as well) of which it is about to tell
// who traces it. Only of SIGKILL it tells nobody.
func (s ProcStat) Killed() syscall.Signal {
	switch signal := syscall.Signal(s.ExitCode & 0x7f); signal {
	case syscall.SIGKILL:
		return signal
	case syscall.SIGSTOP, syscall.SIGTSTP, syscall.SIGTTIN, syscall.SIGTTOU, 0x7f:
		return 0
	default:
		if !s.Ending {
			return 0
		}
		return signal
	}
}

// ending are the kernel's flags of a thread that does not come back: PF_EXITING, PF_POSTCOREDUMP, PF_DUMPCORE, PF_SIGNALED.
const ending = 0x4 | 0x8 | 0x200 | 0x400

// ReadStat reads /proc/PID/stat. The error wraps ErrNoProcess when there is no such process.
func ReadStat(pid int) (ProcStat, error) {
	if pid <= 0 {
		return ProcStat{}, fmt.Errorf("read stat of pid %d: %w", pid, ErrNoProcess)
	}
	text, err := readProc("/proc/" + strconv.Itoa(pid) + "/stat")
	// A process that ends between open and read yields ESRCH.
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
		return ProcStat{}, fmt.Errorf("read stat of pid %d: %w", pid, ErrNoProcess)
	}
	if err != nil {
		return ProcStat{}, fmt.Errorf("read stat of pid %d: %w", pid, err)
	}
	stat, err := parseStat(text)
	if err != nil {
		return ProcStat{}, fmt.Errorf("read stat of pid %d: %w", pid, err)
	}
	return stat, nil
}

// readProc reads a small file of /proc by one read, as the kernel writes it: many times a second, so without what the os
// package does for files that may grow or block.
func readProc(path string) ([]byte, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	defer unix.Close(fd)
	text := make([]byte, 1024) // 52 numbers and a name of 16 bytes
	for {
		n, err := unix.Read(fd, text)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return nil, &os.PathError{Op: "read", Path: path, Err: err}
		default:
			return text[:n], nil
		}
	}
}

// parseStat reads one line of /proc/PID/stat. The command's name may hold blanks and parentheses, so fields are counted
// from the last closing one; the state is field 3 of proc(5).
func parseStat(text []byte) (ProcStat, error) {
	end := bytes.LastIndexByte(text, ')')
	if end < 0 {
		return ProcStat{}, errors.New("no command name")
	}
	fields := strings.Fields(string(text[end+1:]))
	const first, last = 3, 22
	if len(fields) < last-first+1 || len(fields[0]) != 1 {
		return ProcStat{}, fmt.Errorf("%d fields after the command name, want at least %d", len(fields), last-first+1)
	}
	stat := ProcStat{State: fields[0][0]}
	var flags, threads uint64
	for _, f := range []struct {
		field int
		into  *uint64
	}{{9, &flags}, {14, &stat.UserTicks}, {15, &stat.SysTicks}, {20, &threads}, {22, &stat.Start}} {
		v, err := strconv.ParseUint(fields[f.field-first], 10, 63)
		if err != nil {
			return ProcStat{}, fmt.Errorf("field %d: %w", f.field, err)
		}
		*f.into = v
	}
	stat.Threads, stat.Ending = int(threads), flags&ending != 0
	if at := 52 - first; len(fields) > at { // older kernels have no such field
		code, err := strconv.Atoi(fields[at])
		if err != nil {
			return ProcStat{}, fmt.Errorf("field 52: %w", err)
		}
		stat.ExitCode = code
	}
	return stat, nil
}

// StartTime returns the start time of a process in clock ticks since boot. Together with the pid and BootID it names one
// life for ever.
func StartTime(pid int) (uint64, error) {
	stat, err := ReadStat(pid)
	return stat.Start, err
}

// StateOf returns the state letter of a process, as in ProcStat.
func StateOf(pid int) (byte, error) {
	stat, err := ReadStat(pid)
	return stat.State, err
}

// Alive reports whether the process with this pid and start time exists and has not ended. A zombie has ended. When
// /proc cannot be read the answer is true: death needs proof.
func Alive(pid int, start uint64) bool {
	stat, err := ReadStat(pid)
	if err != nil {
		return !errors.Is(err, ErrNoProcess)
	}
	return stat.Start == start && !stat.Dead()
}

// BootID returns the kernel's random id of this boot, or "" where /proc does not tell. Pids and start times of another
// boot mean nothing.
func BootID() string { return bootID() }

var bootID = sync.OnceValue(func() string {
	text, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(text))
})
