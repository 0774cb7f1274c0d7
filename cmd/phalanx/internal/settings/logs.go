// SPDX-License-Identifier: Apache-2.0

package settings

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// PlaceLogs makes DIR/log a link to the directory that --log-dir asks for, so that everybody finds the output below DIR. Names of
// files begin with the host's: hosts may share it.
func (s *Settings) PlaceLogs() error {
	if s.LogDir == "" {
		return nil
	}
	want, link := filepath.Join(s.LogDir, s.Job), filepath.Join(s.Dir, "log")
	if err := os.MkdirAll(want, 0o755); err != nil {
		return usage("name a directory that can be written", "--log-dir: %w", err)
	}
	err := os.Symlink(want, link)
	if !errors.Is(err, fs.ErrExist) {
		if err != nil {
			return fmt.Errorf("--log-dir: %w", err)
		}
		return nil
	}
	if has, err := os.Readlink(link); err != nil || has != want {
		return usage("leave --log-dir out, or start in another --dir", "--log-dir %s: the output of this job is in %s already", s.LogDir, link)
	}
	return nil
}

// SharesCores reports whether trainers get OMP_NUM_THREADS=1 without having asked: as with torchrun, when several run on one host.
func (s *Settings) SharesCores(environ []string) bool {
	return s.Plain && s.LocalSize() > 1 && !slices.ContainsFunc(environ, func(e string) bool { return strings.HasPrefix(e, "OMP_NUM_THREADS=") })
}
