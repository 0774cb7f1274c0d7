// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"phalanx/scripts/internal/job"
)

// series is one thing that is watched. what is a process by member and pid, or "" of the host.
type series struct{ class, what, quantity string }

// sample is all that was seen at one time.
type sample struct {
	at     time.Duration // since the job was started
	peace  bool
	values map[series]float64
}

// sampler looks every few seconds until ctx ends. What it saw is also written beside the job, one line of JSON for each value.
func (s *soak) sampler(ctx context.Context) (samples []sample) {
	path := filepath.Join(s.dir, "samples.jsonl")
	out, err := os.Create(path)
	if err != nil {
		fmt.Fprintf(os.Stderr, "soak: samples are not written: %v\n", err)
		out = nil
	}
	defer out.Close()
	ticker := time.NewTicker(s.every)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return samples
		case <-ticker.C:
		}
		x := sample{at: time.Since(s.began), peace: s.inPeace.Load(), values: map[series]float64{}}
		s.lookAtProcesses(ctx, x)
		s.lookAtFiles(x)
		if ctx.Err() != nil {
			return samples // half a sample
		}
		samples = append(samples, x)
		if out != nil {
			enc := json.NewEncoder(out)
			for k, v := range x.values {
				if err := enc.Encode(map[string]any{"seconds": x.at.Seconds(), "peace": x.peace, "class": k.class, "what": k.what, "quantity": k.quantity, "value": v}); err != nil {
					fmt.Fprintf(os.Stderr, "soak: samples are written no more: %v\n", err)
					out = nil
					break
				}
			}
		}
	}
}

// lookAtProcesses samples run, daemons and trainers. A process that ends meanwhile is left out.
func (s *soak) lookAtProcesses(ctx context.Context, x sample) {
	lookAtProcess(x, "run", "run", int(s.runPID.Load()))
	j := job.Job{Dir: s.started.Dir}
	for i := range members {
		dir := filepath.Join(j.Dir, "members", strconv.Itoa(i))
		var d struct {
			PID    int    `json:"pid"`
			Socket string `json:"socket"`
		}
		b, err := os.ReadFile(filepath.Join(dir, "daemon.json"))
		if err != nil || json.Unmarshal(b, &d) != nil || d.PID <= 1 {
			continue
		}
		what := fmt.Sprintf("%d pid %d", i, d.PID)
		if !lookAtProcess(x, "daemon", what, d.PID) {
			continue
		}
		if n, err := goroutines(ctx, d.Socket); err == nil {
			x.values[series{"daemon", what, "goroutines"}] = n
		}
	}
	for pid, member := range trainers(j.Dir) {
		lookAtProcess(x, "trainer", fmt.Sprintf("%s pid %d", member, pid), pid)
	}
}

// trainers are the training processes of the job, by pid, with their members: those whose environment names a socket of it.
func trainers(dir string) map[int]string {
	found := map[int]string{}
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		line, _ := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
		program, _, _ := bytes.Cut(line, []byte{0})
		environ, _ := os.ReadFile(filepath.Join("/proc", e.Name(), "environ"))
		if filepath.Base(string(program)) != "phalanx-lm" || !bytes.Contains(environ, []byte("PHALANX_SOCKET="+dir+"/")) {
			continue
		}
		for _, v := range bytes.Split(environ, []byte{0}) {
			if member, ok := bytes.CutPrefix(v, []byte("PHALANX_MEMBER=")); ok {
				found[pid] = string(member)
			}
		}
	}
	return found
}

// lookAtProcess reports whether the process lives.
func lookAtProcess(x sample, class, what string, pid int) bool {
	proc := filepath.Join("/proc", strconv.Itoa(pid))
	b, err := os.ReadFile(filepath.Join(proc, "status"))
	if err != nil {
		return false
	}
	values := map[string]float64{}
	for line := range strings.Lines(string(b)) {
		name, rest, _ := strings.Cut(line, ":")
		fields := strings.Fields(rest)
		if len(fields) == 0 {
			continue
		}
		v, _ := strconv.ParseFloat(fields[0], 64)
		switch name {
		case "VmRSS":
			values["rss bytes"] = v * 1024
		case "RssAnon":
			values["anon bytes"] = v * 1024
		case "Threads":
			values["threads"] = v
		}
	}
	fds, err := os.ReadDir(filepath.Join(proc, "fd"))
	if err != nil || len(values) != 3 {
		return false // it is ending
	}
	values["descriptors"] = float64(len(fds))
	for quantity, v := range values {
		x.values[series{class, what, quantity}] = v
	}
	return true
}

// goroutines asks a daemon.
func goroutines(ctx context.Context, socket string) (float64, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	transport := &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://daemon/metrics", nil)
	if err != nil {
		return 0, err
	}
	res, err := (&http.Client{Transport: transport}).Do(req)
	if err != nil {
		return 0, err
	}
	defer res.Body.Close()
	lines := bufio.NewScanner(io.LimitReader(res.Body, 4<<20))
	for lines.Scan() {
		if rest, ok := strings.CutPrefix(lines.Text(), "go_goroutines{"); ok {
			return strconv.ParseFloat(rest[strings.LastIndexByte(rest, ' ')+1:], 64)
		}
	}
	return 0, fmt.Errorf("%s serves no go_goroutines", socket)
}

// lookAtFiles samples what the job keeps in shared memory and in its folder.
func (s *soak) lookAtFiles(x sample) {
	host := func(quantity string, v float64) { x.values[series{"host", "", quantity}] += v }
	sum := sha256.Sum256([]byte(s.started.Dir)) // names the folder's files there
	shm, _ := filepath.Glob("/dev/shm/phalanx." + hex.EncodeToString(sum[:6]) + ".*")
	host("shm files", float64(len(shm)))
	host("shm bytes", 0)
	for _, f := range shm {
		host("shm bytes", onDisk(f))
	}
	for _, quantity := range []string{"log files", "log bytes", "raft bytes", "store bytes", "commit objects", "other bytes"} {
		host(quantity, 0)
	}
	_ = filepath.WalkDir(s.started.Dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return nil // removed meanwhile
		}
		parts := strings.Split(strings.TrimPrefix(path, s.started.Dir+"/"), "/")
		switch {
		case parts[0] == "log":
			host("log files", 1)
			host("log bytes", onDisk(path))
		case parts[0] == "members" && len(parts) > 2 && parts[2] == "raft":
			host("raft bytes", onDisk(path))
		case parts[0] == "store" && len(parts) > 2 && parts[2] == "commits":
			host("commit objects", 1)
		case parts[0] == "store":
			host("store bytes", onDisk(path))
		default:
			host("other bytes", onDisk(path))
		}
		return nil
	})
}

// onDisk is how many bytes a file takes, holes not counted.
func onDisk(path string) float64 {
	var st syscall.Stat_t
	if syscall.Lstat(path, &st) != nil {
		return 0
	}
	return float64(st.Blocks) * 512
}
