// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"bytes"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// BoottimeNS is CLOCK_BOOTTIME in nanoseconds: it runs on through suspend and is the same for all processes of a host.
func BoottimeNS() int64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		return 0 // only before Linux 2.6.39, which has no such clock
	}
	return ts.Nano()
}

// ProcessStart is the start time of a process in clock ticks since boot. With the pid it names a process for ever; an
// error or a zombie means that it has ended.
func ProcessStart(pid int) (uint64, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, fmt.Errorf("start time of process %d: %w", pid, err)
	}
	// The name in parentheses may hold anything, so fields count from the last parenthesis: state is field 3.
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	if len(fields) < 20 {
		return 0, fmt.Errorf("start time of process %d: %d fields: %w", pid, len(fields), ErrFormat)
	}
	if state := fields[0][0]; state == 'Z' || state == 'X' {
		return 0, fmt.Errorf("start time of process %d: %w", pid, os.ErrProcessDone)
	}
	start, err := strconv.ParseUint(string(fields[19]), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("start time of process %d: %w", pid, err)
	}
	return start, nil
}

// Alive reports whether exactly this process still runs.
func Alive(pid int, start uint64) bool {
	got, err := ProcessStart(pid)
	return err == nil && got == start
}
