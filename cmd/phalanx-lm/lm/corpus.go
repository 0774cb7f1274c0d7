// SPDX-License-Identifier: Apache-2.0

package lm

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Corpus is the text to train on.
type Corpus struct {
	Data []byte
	Hash string // hex of the first 16 bytes of the SHA-256 of Data
}

// textSuffixes are the names that count as text.
var textSuffixes = []string{".c", ".cc", ".cpp", ".go", ".h", ".json", ".md", ".py", ".rs", ".s", ".tex", ".toml", ".txt", ".yaml"}

// NewCorpus returns the corpus with this text.
func NewCorpus(data []byte) *Corpus {
	sum := sha256.Sum256(data)
	return &Corpus{data, hex.EncodeToString(sum[:16])}
}

// ReadCorpus reads the text files below a directory one after the other, at most limit bytes. Files come in path order, the
// names of a directory as bytes, so that equal trees give equal corpora on every host. Names that start with a dot, symbolic
// links and files that do not look like text by their suffix are passed over; a file that cannot be read is an error, since
// a host without it would train on something else.
func ReadCorpus(dir string, limit int64) (*Corpus, error) {
	if limit <= 0 {
		return nil, fmt.Errorf("read corpus %s: limit of %d bytes; give a positive one", dir, limit)
	}
	// The root may be a link, as /usr/local/go often is; a walk would not follow it.
	root, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return nil, fmt.Errorf("read corpus %s: %w", dir, err)
	}
	var data []byte
	err = filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case int64(len(data)) == limit:
			return fs.SkipAll
		case path != root && strings.HasPrefix(entry.Name(), "."):
			if entry.IsDir() {
				return fs.SkipDir
			}
			return nil
		case !entry.Type().IsRegular() || !slices.Contains(textSuffixes, filepath.Ext(entry.Name())):
			return nil
		}
		data, err = appendFile(data, path, limit-int64(len(data)))
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read corpus %s: %w", dir, err)
	}
	if len(data) == 0 {
		return nil, fmt.Errorf("read corpus %s: no text in it; files must end in one of %s", dir, strings.Join(textSuffixes, " "))
	}
	return NewCorpus(data), nil
}

// appendFile appends at most limit bytes of a file.
func appendFile(data []byte, path string, limit int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	more, err := io.ReadAll(io.LimitReader(f, limit))
	if err != nil {
		return nil, err
	}
	return append(data, more...), nil
}
