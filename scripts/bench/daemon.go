// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"phalanx/scripts/internal/job"
)

// daemonUse is what the daemons of a training job use. CPU is in percent of one core, sizes are in MiB, each of one daemon.
type daemonUse struct {
	What        string  `json:"what"`
	StepsPerSec float64 `json:"steps_per_second"`
	CPU         summary `json:"cpu_percent"`
	LeaderCPU   float64 `json:"leader_cpu_percent"`
	RssAnon     summary `json:"rss_anon_mib"`
	RssFile     summary `json:"rss_file_mib"`
	RssShmem    summary `json:"rss_shmem_mib"`
}

// measureDaemons watches daemons while the trainers do ten steps a second: only voting, and with a reduction; and while
// they hardly do any, which shows what a daemon uses without steps.
func measureDaemons(ctx context.Context, p plan, dir string, r *results) error {
	for i, k := range []struct {
		what, kind string
		floor      time.Duration
	}{
		{"a step in four seconds", "-bare", 4 * time.Second},
		{"ten steps a second, votes only", "-bare", 100 * time.Millisecond},
		{"ten steps a second, 64 KiB reduced", "-reduced", 100 * time.Millisecond},
	} {
		folder := filepath.Join(dir, fmt.Sprint("daemons-", i))
		j, err := start(p, folder, ranks, nil, p.self, trainerVerb, "-out", folder, "-warm", "0", k.kind, "100000000", "-floor", k.floor.String())
		if err != nil {
			return err
		}
		use, err := j.use(ctx, k.what)
		j.end()
		if err != nil {
			return fmt.Errorf("%s: %w", k.what, err)
		}
		r.Daemons = append(r.Daemons, *use)
	}
	return nil
}

// use watches the daemons of a job for a while.
func (j *run) use(ctx context.Context, what string) (*daemonUse, error) {
	if _, err := j.Until(ctx, "all ranks train", j.trains); err != nil {
		return nil, err
	}
	// The voters are chosen by then, and the memory of the start is given back.
	if err := job.Pause(ctx, 3*time.Second); err != nil {
		return nil, err
	}
	from, err := j.Look(ctx)
	if err != nil {
		return nil, err
	}
	before, began := map[string]time.Duration{}, time.Now()
	for _, id := range from.World {
		if before[id], err = ran(from.Find(id).DaemonPID); err != nil {
			return nil, err
		}
	}
	if err := job.Pause(ctx, j.observe); err != nil {
		return nil, err
	}
	took := time.Since(began)
	u := &daemonUse{What: what}
	var cpu, anon, file, shmem []float64
	for _, id := range from.World {
		pid := from.Find(id).DaemonPID
		now, err := ran(pid)
		if err != nil {
			return nil, err
		}
		percent := 100 * (now - before[id]).Seconds() / took.Seconds()
		if id == from.Leader {
			u.LeaderCPU = percent
		}
		cpu = append(cpu, percent)
		status := fmt.Sprintf("/proc/%d/status", pid)
		anon, file, shmem = append(anon, mib(status, "RssAnon")), append(file, mib(status, "RssFile")), append(shmem, mib(status, "RssShmem"))
	}
	to, err := j.Look(ctx)
	if err != nil {
		return nil, err
	}
	if to.Generation != from.Generation {
		return nil, fmt.Errorf("the world changed, generation %d to %d, though nothing was killed", from.Generation, to.Generation)
	}
	u.StepsPerSec = float64(to.Step-from.Step) / time.Since(began).Seconds()
	u.CPU, u.RssAnon, u.RssFile, u.RssShmem = summarise(cpu), summarise(anon), summarise(file), summarise(shmem)
	return u, nil
}

// ran is the time that the threads of a process were on a processor.
func ran(pid int) (time.Duration, error) {
	names, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
	if len(names) == 0 {
		return 0, fmt.Errorf("process %d is gone", pid)
	}
	var sum time.Duration
	for _, name := range names {
		b, err := os.ReadFile(name)
		if err != nil {
			continue // the thread ended since
		}
		first, _, _ := strings.Cut(string(b), " ")
		ns, err := strconv.ParseInt(first, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("read %s: %w", name, err)
		}
		sum += time.Duration(ns)
	}
	return sum, nil
}

// mib reads a line of a process' status, which is in kB.
func mib(file, name string) float64 {
	kb, _ := strconv.ParseFloat(strings.TrimSuffix(field(file, name, ":"), " kB"), 64) // 0 for what is not there
	return kb / 1024
}
