// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"os"
	"os/exec"
	"runtime"
	"strings"
)

// facts say what was measured where.
type facts struct {
	CPU    string `json:"cpu"`
	Cores  int    `json:"cores"`
	Memory string `json:"memory"`
	Kernel string `json:"kernel"`
	System string `json:"system"`
	Go     string `json:"go"`
	Commit string `json:"commit"`
	Load   string `json:"load"` // before anything was started
	User   string `json:"user"` // root may raise priorities
}

func machineFacts(ctx context.Context, commit string) facts {
	f := facts{
		CPU: field("/proc/cpuinfo", "model name", ":"), Cores: runtime.NumCPU(), Memory: field("/proc/meminfo", "MemTotal", ":"),
		Kernel: strings.TrimSpace(read("/proc/sys/kernel/osrelease")), System: strings.Trim(field("/etc/os-release", "PRETTY_NAME", "="), `"`),
		Go: runtime.Version(), Commit: commit, Load: loadAverage(), User: "not root",
	}
	if os.Getuid() == 0 {
		f.User = "root"
	}
	if out, err := exec.CommandContext(ctx, "systemd-detect-virt").Output(); err == nil {
		f.System += ", " + strings.TrimSpace(string(out))
	}
	return f
}

// loadAverage is of the last minute, and the running and existing threads.
func loadAverage() string {
	f := strings.Fields(read("/proc/loadavg"))
	if len(f) < 4 {
		return "unknown"
	}
	return f[0] + " (" + f[3] + " threads)"
}

// field is the value of the first line that begins with a name.
func field(file, name, separator string) string {
	for line := range strings.Lines(read(file)) {
		if key, value, ok := strings.Cut(line, separator); ok && strings.TrimSpace(key) == name {
			return strings.TrimSpace(value)
		}
	}
	return "unknown"
}

// read is empty for what is not there: a fact that is missing stops nothing.
func read(file string) string {
	b, _ := os.ReadFile(file)
	return string(b)
}
