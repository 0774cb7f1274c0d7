// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const (
	// sampleEvery is how often the memory of processes is looked at, listEvery how often for new processes.
	sampleEvery = 20 * time.Millisecond
	listEvery   = 200 * time.Millisecond
)

// sample is the anonymous memory of some processes together.
type sample struct {
	unix float64
	mib  float64
}

type samples []sample

// growth is the highest value in any of the windows over the one before the first of them.
func (s samples) growth(windows [][2]float64) float64 {
	if len(windows) == 0 {
		return 0
	}
	var before, most float64
	for _, v := range s {
		if v.unix <= windows[0][0] {
			before = v.mib
		}
		for _, w := range windows {
			if v.unix >= w[0] && v.unix <= w[1] {
				most = max(most, v.mib)
			}
		}
	}
	return max(0, most-before)
}

// watchMemory samples processes until stop is called, which returns what was seen.
func watchMemory(pids func() []int) (stop func() samples) {
	end, done := make(chan struct{}), make(chan samples, 1) // 1: the watcher answers once
	go func() {
		var out samples
		var all []int
		var listed time.Time
		tick := time.NewTicker(sampleEvery)
		defer tick.Stop()
		for {
			select {
			case <-end:
				done <- out
				return
			case now := <-tick.C:
				if now.Sub(listed) > listEvery {
					all, listed = pids(), now
				}
				var sum float64
				for _, pid := range all {
					sum += mib(fmt.Sprintf("/proc/%d/status", pid), "RssAnon")
				}
				out = append(out, sample{unix(now), sum})
			}
		}
	}()
	return func() samples {
		close(end)
		return <-done
	}
}

// groupOf lists the processes of a process group.
func groupOf(group int) func() []int {
	return func() (pids []int) {
		entries, _ := os.ReadDir("/proc")
		for _, e := range entries {
			pid, err := strconv.Atoi(e.Name())
			if err != nil {
				continue
			}
			_, stat, _ := strings.Cut(read(fmt.Sprintf("/proc/%d/stat", pid)), ") ")
			if f := strings.Fields(stat); len(f) > 2 && f[2] == strconv.Itoa(group) {
				pids = append(pids, pid)
			}
		}
		return pids
	}
}

// tellLimit bounds one program that measures.
const tellLimit = 4 * time.Minute

// tell runs a program that ends with a RESULT line, in a process group of its own whose memory it watches.
func tell(ctx context.Context, into any, program string, args ...string) (samples, error) {
	ctx, cancel := context.WithTimeout(ctx, tellLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 5 * time.Second // what it started may hold the pipes
	var out, told bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &told
	what := strings.TrimSpace(filepath.Base(program) + " " + filepath.Base(args[0]))
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	stop := watchMemory(groupOf(cmd.Process.Pid))
	err := cmd.Wait()
	seen := stop()
	_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // what it left behind, if anything
	last := tailOf(out.Bytes())
	_, result, ok := strings.Cut(last, "RESULT ")
	if !ok || err != nil && ctx.Err() != nil {
		return nil, fmt.Errorf("%s: no result (%v)\n%s%s", what, err, last, tailOf(told.Bytes()))
	}
	if err := json.Unmarshal([]byte(result), into); err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	return seen, nil
}

// sharedMiB is the shared memory that processes map, each page counted once among those that map it.
func sharedMiB(pids []int) (sum float64) {
	for _, pid := range pids {
		sum += mib(fmt.Sprintf("/proc/%d/smaps_rollup", pid), "Pss_Shmem")
	}
	return sum
}
