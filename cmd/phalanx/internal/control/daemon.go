// SPDX-License-Identifier: Apache-2.0

package control

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"

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
		return Living{}, false
	}
	return Living{index, f}, true
}

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
