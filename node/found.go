// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"phalanx/internal/failpoint"
)

// founded marks a directory that has founded its job, founding one that is about to. Nobody can have joined while there is
// only the second: the daemon answers nobody before it has the first.
func (d *Daemon) founded() string  { return filepath.Join(d.paths.Dir, "founded") }
func (d *Daemon) founding() string { return filepath.Join(d.paths.Dir, "founding") }

// found makes the first daemon of a job's first host the founder of its Raft group. Joining comes first: whoever was given an
// address to join never founds, and a directory that has founded once never does again, whatever became of its log.
func (d *Daemon) found() error {
	if !d.cfg.Bootstrap || d.cfg.Index != 0 || d.raft.HasState() || len(d.roster.all()) > 0 {
		return nil
	}
	if _, err := os.Stat(d.founded()); err == nil {
		d.log.Warn("this directory has founded the job before and its log is gone: waits for another daemon to lead")
		return nil
	}
	if err := os.WriteFile(d.founding(), []byte(d.tag+"\n"), 0o600); err != nil {
		return &Problem{CodeFailed, fmt.Errorf("found the job: %w", err), "choose a directory that can be written with --dir"}
	}
	failpoint.Here("founding")
	if err := d.raft.Bootstrap(); err != nil {
		return fmt.Errorf("found the job: %w", err)
	}
	failpoint.Here("bootstrapped")
	// Others may join from now on: the first mark must not come back, or the log would be thrown away at the next start.
	if err := rename(d.founding(), d.founded()); err != nil {
		return fmt.Errorf("found the job: %w", err)
	}
	failpoint.Here("founded")
	return nil
}

// unfound removes what is left of a founding that did not come to its end: a log that may be half made, and that nobody has
// seen. It must be called before the log is opened.
func (d *Daemon) unfound(dir string) error {
	if d.cfg.Index != 0 {
		return nil
	}
	if _, err := os.Stat(d.founding()); err != nil {
		return nil
	}
	err := os.RemoveAll(filepath.Join(dir, "raft"))
	if err == nil {
		err = os.Remove(d.founding())
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return &Problem{CodeFailed, fmt.Errorf("begin the founding of the job anew: %w", err), "check the rights of " + d.paths.Dir}
	}
	d.log.Info("the founding of the job had not come to its end and begins anew")
	return nil
}
