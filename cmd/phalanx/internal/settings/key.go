// SPDX-License-Identifier: Apache-2.0

package settings

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"phalanx/node"
)

// KeyVariable holds the job key where no file does. It is taken out of the environment before a trainer is started.
const KeyVariable = "PHALANX_KEY"

// LocalKeyFile is the key of a job on one host, made by its first run.
func LocalKeyFile(dir string) string { return filepath.Join(dir, "key") }

// ExplicitKey reads the key that was given: by file, or by the variable's value. ok is false when none was.
func (s *Settings) ExplicitKey(variable string) (key node.JobKey, ok bool, err error) {
	switch {
	case s.KeyFile != "":
		key, err = node.ReadJobKey(s.KeyFile)
	case variable != "":
		if key, err = node.ParseJobKey(variable); err != nil {
			err = fmt.Errorf("%s: %w", KeyVariable, err)
		}
	default:
		return node.JobKey{}, false, nil
	}
	if err != nil {
		return node.JobKey{}, false, &node.Problem{Code: node.CodeAuth, Err: err}
	}
	return key, true, nil
}

// LocalKey reads DIR/key and makes it when there is none. The caller holds the lock of the directory.
func (s *Settings) LocalKey() (node.JobKey, error) {
	path := LocalKeyFile(s.Dir)
	key, err := node.ReadJobKey(path)
	if err == nil {
		return key, nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return node.JobKey{}, &node.Problem{Code: node.CodeAuth, Err: err}
	}
	key = node.NewJobKey()
	// A file that is cut short by a crash would be refused for ever: it gets its name when it is whole.
	if err := os.WriteFile(path+".new", []byte(key.String()+"\n"), 0o600); err != nil {
		return node.JobKey{}, fmt.Errorf("write key: %w", err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		return node.JobKey{}, fmt.Errorf("write key: %w", err)
	}
	return key, nil
}
