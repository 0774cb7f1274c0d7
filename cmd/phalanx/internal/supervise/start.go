// SPDX-License-Identifier: Apache-2.0

package supervise

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// niceness of the daemons, relative to run's own: a daemon that waits for the processor behind a trainer costs every rank of
// the job a step.
const niceness = -5

// spawn starts a process in a group of its own with its output appended to a file. niced is false when the kernel does not
// allow the higher priority. words is passed on as descriptor wordsFD. Nobody waits for the process by pid: run reaps all children alike.
func spawn(program string, argv, env []string, output string, words *os.File) (pid int, niced bool, err error) {
	failed := func(err error) (int, bool, error) { return 0, false, fmt.Errorf("start daemon: %w", err) }
	if err := os.MkdirAll(filepath.Dir(output), 0o700); err != nil {
		return failed(err)
	}
	out, err := os.OpenFile(output, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return failed(err)
	}
	defer out.Close()
	none, err := os.Open(os.DevNull)
	if err != nil {
		return failed(err)
	}
	defer none.Close()
	// Priority belongs to a thread and is inherited by what the thread starts, so the child has it from its first
	// instruction, on all its threads.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if was, err := unix.Getpriority(unix.PRIO_PROCESS, 0); err == nil {
		mine := 20 - was // the system call shifts it to be positive
		if unix.Setpriority(unix.PRIO_PROCESS, 0, mine+niceness) == nil {
			niced = true
			defer func() { _ = unix.Setpriority(unix.PRIO_PROCESS, 0, mine) }() // lowering is always allowed
		}
	}
	p, err := os.StartProcess(program, argv, &os.ProcAttr{
		Env: env, Files: []*os.File{none, out, out, words}, Sys: &syscall.SysProcAttr{Setpgid: true},
	})
	if err != nil {
		return failed(err)
	}
	pid = p.Pid
	_ = p.Release() // frees the handle; the process goes on
	return pid, niced, nil
}
