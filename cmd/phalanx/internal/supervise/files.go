// SPDX-License-Identifier: Apache-2.0

package supervise

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"phalanx"
	"phalanx/node"
)

// Failure is why a daemon could not start or go on.
type Failure struct {
	PID    int    `json:"pid"` // of the daemon that failed
	Code   int    `json:"code"`
	Reason string `json:"reason"`
	Hint   string `json:"hint,omitempty"`
}

// FailurePath is where the newest daemon of a member leaves its Failure.
func FailurePath(dir string, index int) string {
	return filepath.Join(node.NewPaths(dir, "").Member(index), "failure.json")
}

// DaemonLog is the output of the daemons of a member.
func DaemonLog(dir string, m phalanx.MemberID) string {
	return node.NewPaths(dir, "").DaemonLog(m)
}

// WriteFile replaces a small JSON file as a whole and makes it durable: an outcome must not be lost with the power.
func WriteFile(path string, v any) (err error) {
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return fmt.Errorf("encode %s: %w", path, err)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	f, err := os.OpenFile(path+".new", os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	_, err = f.Write(append(b, '\n'))
	if err == nil {
		err = f.Sync()
	}
	if e := f.Close(); err == nil {
		err = e
	}
	if err == nil {
		err = os.Rename(path+".new", path)
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}

// readOutcome returns nil when the member has none, or one that cannot be read: then its daemon runs again and says it anew.
func readOutcome(dir string, index int) *node.Outcome {
	o := new(node.Outcome)
	if readFile(node.NewPaths(dir, "").Outcome(index), o) != nil {
		return nil
	}
	return o
}

// Done reports whether a member of a directory has ended with the job's result.
func Done(dir string) bool { return Result(dir) != nil }

// Result is what a member of a directory has ended with when its job was done, nil when none has.
func Result(dir string) *node.Outcome {
	entries, err := os.ReadDir(filepath.Join(dir, "members"))
	if err != nil {
		return nil // nobody was here
	}
	for _, e := range entries {
		if i, err := strconv.Atoi(e.Name()); err == nil {
			if o := readOutcome(dir, i); o != nil && o.Done && o.Code == node.CodeOK {
				return o
			}
		}
	}
	return nil
}

// readFailure returns what the daemon with a pid said of its end, nil when it said nothing.
func readFailure(dir string, index, pid int) *Failure {
	f := new(Failure)
	if readFile(FailurePath(dir, index), f) != nil || f.PID != pid {
		return nil
	}
	return f
}

func readFile(path string, v any) error {
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	return json.Unmarshal(b, v)
}

// forget removes what earlier daemons of a member left about their end.
func forget(dir string, index int) error {
	for _, path := range []string{node.NewPaths(dir, "").Outcome(index), FailurePath(dir, index)} {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove the outcome of an earlier run: %w", err)
		}
	}
	return nil
}

// lastLines are at most n lines from the end of a file.
func lastLines(path string, n int) []string {
	f, err := os.Open(path)
	if err != nil {
		return nil
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil
	}
	b := make([]byte, min(info.Size(), 16<<10))
	k, _ := f.ReadAt(b, info.Size()-int64(len(b))) // a file that grows meanwhile is read short, which is as good
	lines := strings.Split(strings.TrimRight(string(b[:k]), "\n"), "\n")
	return lines[max(0, len(lines)-n):]
}
