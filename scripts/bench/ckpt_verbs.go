// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
)

// verbMemory is what a verb of the command line needs.
type verbMemory struct {
	Verb       string  `json:"verb"`
	MiB        int     `json:"state_mib"`
	Seconds    float64 `json:"seconds"`
	PeakMiB    float64 `json:"peak_mib"` // of anonymous memory, sampled
	BuffersMiB float64 `json:"buffers_mib"`
}

// measureVerbs converts and restores a checkpoint by the command line. A verb that this build does not have is left out.
func (p ckptPlan) measureVerbs(ctx context.Context, dir string, r *ckptResults) error {
	size := 1024
	if p.quick {
		size = 64
	}
	if p.mib > 0 {
		size = p.mib
	}
	place := filepath.Join(p.tmpfs, "verbs")
	defer os.RemoveAll(place)
	var told layerTimes
	if _, err := tell(ctx, &told, p.self, layerVerb, "-store", place, "-mib", strconv.Itoa(size), "-reps", "1", "-keep"); err != nil {
		return err
	}
	phalanx := filepath.Join(p.bin, "phalanx")
	for i, verb := range []string{"restore", "convert"} {
		if help, err := exec.CommandContext(ctx, phalanx, "ckpt", verb, "--help").CombinedOutput(); err != nil || !bytes.Contains(help, []byte("ckpt "+verb)) {
			fmt.Printf("   no verb %s in this build\n", verb)
			continue
		}
		to := filepath.Join(place, "to-"+strconv.Itoa(i))
		cmd := exec.CommandContext(ctx, phalanx, verbArguments(verb, place, to)...)
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		var out bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &out
		if err := cmd.Start(); err != nil {
			return err
		}
		stop := watchMemory(groupOf(cmd.Process.Pid))
		err := cmd.Wait()
		seen := stop()
		if err != nil {
			return fmt.Errorf("phalanx ckpt %s: %w\n%s", verb, err, tailOf(out.Bytes()))
		}
		v := verbMemory{Verb: verb, MiB: size, Seconds: cmd.ProcessState.UserTime().Seconds() + cmd.ProcessState.SystemTime().Seconds()}
		for _, s := range seen {
			v.PeakMiB = max(v.PeakMiB, s.mib)
		}
		r.Verbs = append(r.Verbs, v)
		if err := os.RemoveAll(to); err != nil {
			return err
		}
	}
	return nil
}

// verbArguments ask for the newest checkpoint of the benchmark's job: its restore as it is, and its conversion.
func verbArguments(verb, place, to string) []string {
	if verb == "convert" {
		return []string{"ckpt", "convert", place + "/" + benchJob, to, "--to", "safetensors"}
	}
	return []string{"ckpt", "restore", "latest", to, "--store", place, "--job", benchJob}
}
