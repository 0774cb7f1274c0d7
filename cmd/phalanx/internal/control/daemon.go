// SPDX-License-Identifier: Apache-2.0

package control

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"phalanx/membership"
	"phalanx/node"
)

// Living is a daemon of this host that runs now.
type Living struct {
	Index int
	node.DaemonFile
}

// Find lists the living daemons of a directory, by index. A directory without any has none.
func Find(dir string) []Living {
	entries, err := os.ReadDir(filepath.Join(dir, "members"))
	if err != nil {
		return nil
	}
	var out []Living
	for _, e := range entries {
		index, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if l, ok := FindOne(dir, index); ok {
			out = append(out, l)
		}
	}
	slices.SortFunc(out, func(a, b Living) int { return a.Index - b.Index })
	return out
}

// FindOne returns the living daemon with a local index.
func FindOne(dir string, index int) (Living, bool) {
	f, err := ReadDaemonFile(dir, index)
	if err != nil || f.PID <= 0 || !membership.Alive(f.PID, f.Start) {
		return listening(node.NewPaths(dir, "").Socket(index), index)
	}
	return Living{index, f}, true
}

// listening finds the daemon that listens on a socket: it could not write where it is, on a full disk.
func listening(socket string, index int) (Living, bool) {
	c, err := net.DialTimeout("unix", socket, lookTime)
	if err != nil {
		return Living{}, false
	}
	defer c.Close()
	u, ok := c.(*net.UnixConn)
	if !ok {
		return Living{}, false
	}
	raw, err := u.SyscallConn()
	if err != nil {
		return Living{}, false
	}
	pid := 0
	if err := raw.Control(func(fd uintptr) {
		if cred, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
			pid = int(cred.Pid)
		}
	}); err != nil || pid <= 0 {
		return Living{}, false
	}
	start, err := membership.StartTime(pid)
	if err != nil {
		return Living{}, false
	}
	return Living{index, node.DaemonFile{PID: pid, Start: start, Socket: socket}}, true
}

// lookTime bounds a connection on this host: the kernel accepts it for a daemon that is busy.
const lookTime = 200 * time.Millisecond

// ReadDaemonFile reads what the newest daemon with a local index said of itself, dead or alive.
func ReadDaemonFile(dir string, index int) (node.DaemonFile, error) {
	var f node.DaemonFile
	path := node.NewPaths(dir, "").DaemonFile(index)
	b, err := os.ReadFile(path)
	if err != nil {
		return f, fmt.Errorf("read daemon's address: %w", err)
	}
	if err := json.Unmarshal(b, &f); err != nil {
		return f, fmt.Errorf("read daemon's address %s: %w", path, err)
	}
	return f, nil
}
