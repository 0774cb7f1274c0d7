// SPDX-License-Identifier: Apache-2.0

package supervise

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// WordsFlag names the descriptor of a daemon's last words on its command line.
const WordsFlag = "last-words"

// wordsFD is that descriptor in the daemon.
const wordsFD = 3

// newWords makes memory for the last words of a daemon: its log and its directory may be full when it has something to say. It
// outlives the daemon, and is gone with run, which alone reads it.
func newWords() (*os.File, error) {
	fd, err := unix.MemfdCreate("phalanx-words", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("memory for last words: %w", err)
	}
	return os.NewFile(uintptr(fd), "last words"), nil
}

// readWords returns the failure that a daemon has left, or what was printed of its crash.
func readWords(f *os.File) (*Failure, string) {
	if f == nil {
		return nil, ""
	}
	b, err := io.ReadAll(io.NewSectionReader(f, 0, 16<<10))
	if err != nil || len(b) == 0 {
		return nil, ""
	}
	x := new(Failure)
	if json.Unmarshal(b, x) == nil && x.Reason != "" {
		return x, ""
	}
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	return nil, strings.Join(lines[:min(len(lines), 4)], "\n")
}

// WriteWords leaves a failure where run reads it.
func WriteWords(f *os.File, x Failure) error {
	b, err := json.Marshal(x)
	if err == nil {
		_, err = f.Write(b)
	}
	if err != nil {
		return fmt.Errorf("leave last words: %w", err)
	}
	return nil
}

// fullBelow is less than a daemon needs to begin.
const fullBelow = 1 << 20

// full says how full the file system of a directory is, when that keeps daemons from beginning.
func full(dir string) string {
	var st unix.Statfs_t
	if unix.Statfs(dir, &st) != nil {
		return ""
	}
	switch left := int64(st.Bavail) * st.Bsize; {
	case left < fullBelow:
		return fmt.Sprintf("the file system of %s is full: %d KiB are left", dir, left>>10)
	case st.Files > 0 && st.Ffree == 0:
		return fmt.Sprintf("the file system of %s is full: it has no room for another file", dir)
	}
	return ""
}
