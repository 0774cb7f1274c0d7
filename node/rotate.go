// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"fmt"
	"io"
	"os"
	"time"
)

// What a trainer prints, and what the daemons of a member do, is kept in two files of this size at most. The writer has the
// first one open for appending and must not notice, so it is copied and truncated; what is printed between the two is lost,
// a few lines in 64 MiB.
const (
	rotateBytes = 64 << 20
	rotateEvery = 10 * time.Second
)

// rotate copies a log that has grown beyond limit to PATH.1 and truncates it.
func rotate(path string, limit int64) error {
	info, err := os.Stat(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil // no output yet
	}
	if err != nil {
		return fmt.Errorf("rotate: %w", err)
	}
	if info.Size() < limit {
		return nil
	}
	from, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("rotate: %w", err)
	}
	defer from.Close()
	to, err := os.OpenFile(path+".1.new", os.O_CREATE|os.O_TRUNC|os.O_WRONLY, info.Mode().Perm())
	if err != nil {
		return fmt.Errorf("rotate %s: %w", path, err)
	}
	_, err = io.Copy(to, from)
	if e := to.Close(); err == nil {
		err = e
	}
	if err == nil {
		err = os.Rename(path+".1.new", path+".1")
	}
	if err != nil {
		return fmt.Errorf("rotate %s: %w", path, errors.Join(err, os.Remove(path+".1.new")))
	}
	return os.Truncate(path, 0)
}

// rotateLogs looks at the size of the trainer's output and of the daemon's own now and then, beside the loop.
func (d *Daemon) rotateLogs(now time.Time) {
	if d.life == nil || d.rotating || now.Sub(d.rotated) < rotateEvery {
		return
	}
	d.rotating, d.rotated = true, now
	trainer, daemon := d.paths.TrainerLog(d.life.who), d.paths.DaemonLog(d.me())
	d.ends.Go(func() {
		err := errors.Join(rotate(trainer, rotateBytes), rotate(daemon, rotateBytes))
		d.post(func() {
			d.rotating = false
			if err != nil {
				d.log.Warn("output is not rotated", "error", err)
			}
		})
	})
}
