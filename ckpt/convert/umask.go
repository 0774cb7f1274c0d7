// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"io/fs"
	"os"
	"strconv"
	"strings"
)

// umask is the process's mask of file rights. It is read without changing it, which other goroutines would notice; 022 where
// the kernel does not tell.
func umask() fs.FileMode {
	b, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0o022
	}
	for line := range strings.Lines(string(b)) {
		if text, ok := strings.CutPrefix(line, "Umask:"); ok {
			if n, err := strconv.ParseUint(strings.TrimSpace(text), 8, 32); err == nil {
				return fs.FileMode(n) & fs.ModePerm
			}
		}
	}
	return 0o022
}
