// SPDX-License-Identifier: Apache-2.0

package supervise

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"phalanx/client/wire"
	"phalanx/membership"
)

// startOne starts one process ahead: in a group of its own, at the lowest priority if that can be taken back, and the first that
// the kernel kills when memory is short.
func (k *keeper) startOne(number int) (*warmProcess, error) {
	name := k.paths.WarmLog(k.host, number)
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return nil, fmt.Errorf("start a trainer ahead: %w", err)
	}
	out, err := os.OpenFile(name, os.O_CREATE|os.O_TRUNC|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, fmt.Errorf("start a trainer ahead: %w", err)
	}
	defer out.Close()
	none, err := os.Open(os.DevNull)
	if err != nil {
		return nil, fmt.Errorf("start a trainer ahead: %w", err)
	}
	defer none.Close()
	program, err := exec.LookPath(k.command[0])
	if err != nil {
		return nil, fmt.Errorf("start a trainer ahead: %w", err)
	}
	p, err := os.StartProcess(program, k.command, &os.ProcAttr{
		Env: append(k.env[:len(k.env):len(k.env)], wire.WarmVariable+"="+k.paths.WarmSocket()), Files: []*os.File{none, out, out}, Sys: &syscall.SysProcAttr{Setpgid: true},
	})
	if err != nil {
		return nil, fmt.Errorf("start a trainer ahead: %w", err)
	}
	w := &warmProcess{pid: p.Pid, number: number}
	_ = p.Release()                          // the supervisor reaps it
	w.start, _ = membership.StartTime(w.pid) // 0 when it has ended already, which its status tells
	if k.nice {
		_ = unix.Setpriority(unix.PRIO_PGRP, w.pid, warmNice)
	}
	_ = writeOOM(w.pid, "1000")
	return w, nil
}

// restore makes a process that was started ahead as good as any trainer.
func (k *keeper) restore(p *warmProcess) {
	if k.nice {
		_ = unix.Setpriority(unix.PRIO_PGRP, p.pid, 0) // of all its threads, and of what it has started
	}
	_ = writeOOM(p.pid, ownOOM())
}

func writeOOM(pid int, score string) error {
	return os.WriteFile(fmt.Sprintf("/proc/%d/oom_score_adj", pid), []byte(score), 0)
}

func ownOOM() string {
	b, err := os.ReadFile("/proc/self/oom_score_adj")
	if err != nil {
		return "0"
	}
	return strings.TrimSpace(string(b))
}

// mayRaise reports whether this process may give others a higher priority than they have, up to the usual one: by its limit
// for that, or by a capability.
func mayRaise() bool {
	var limit unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NICE, &limit) == nil && limit.Cur >= 20 { // 20 − niceness
		return true
	}
	b, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(b)) {
		if hex, ok := strings.CutPrefix(line, "CapEff:"); ok {
			mask, err := strconv.ParseUint(strings.TrimSpace(hex), 16, 64)
			return err == nil && mask>>unix.CAP_SYS_NICE&1 == 1
		}
	}
	return false
}

// appendFile adds what a file holds to another one.
func appendFile(from, to string) error {
	in, err := os.Open(from)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}
