// SPDX-License-Identifier: Apache-2.0

package supervise

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"phalanx/node"
)

// Lock is the lock of a job's directory on this host.
type Lock struct{ file *os.File }

// TakeLock makes the directory and locks it, or says which process holds it. The lock ends with the process; daemons do not
// inherit it.
func TakeLock(dir string) (*Lock, error) {
	hint := "choose a directory that can be written with --dir"
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, &node.Problem{Code: node.CodeFailed, Err: fmt.Errorf("make directory: %w", err), Hint: hint}
	}
	path := filepath.Join(dir, "run.lock")
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, &node.Problem{Code: node.CodeFailed, Err: fmt.Errorf("lock directory: %w", err), Hint: hint}
	}
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		holder, _ := io.ReadAll(io.LimitReader(f, 32))
		f.Close()
		return nil, &node.Problem{Code: node.CodeLocked, Err: fmt.Errorf("%s is in use by another phalanx run, pid %s", dir, strings.TrimSpace(string(holder))),
			Hint: "see it with: phalanx status --dir " + dir + "; for another job give another --dir"}
	}
	if err == nil {
		err = f.Truncate(0)
	}
	if err == nil {
		_, err = fmt.Fprintf(f, "%d\n", os.Getpid())
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	return &Lock{f}, nil
}

// Release gives the directory free.
func (l *Lock) Release() { l.file.Close() }
