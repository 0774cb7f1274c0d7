// SPDX-License-Identifier: Apache-2.0

package view

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
)

// Journal remembers which chunks were verified, so that a verification that was interrupted goes on where it was. It is a file
// of lines of JSON that is only appended to; a last line that is cut off is ignored.
type Journal struct {
	place string
	good  map[journalKey]bool
	file  *os.File
}

// journalLine is a line: a chunk and what was found.
type journalLine struct {
	Place string `json:"place"`
	Chunk
	OK    bool   `json:"ok"`
	Error string `json:"error,omitempty"`
}

type journalKey struct {
	place, object, sum string
	at, length         int64
}

func keyOf(place string, c *Chunk) journalKey {
	return journalKey{place, c.Object, c.Sum, c.At, c.Length}
}

// maxJournalLine bounds a line.
const maxJournalLine = 64 << 10

// OpenJournal opens the journal at a path, which need not exist, for a view.
func OpenJournal(path string, v *View) (*Journal, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|os.O_APPEND, 0o644) //nolint:gosec // no secret is in it
	if err != nil {
		return nil, err
	}
	j := &Journal{place: v.Place, file: f}
	if j.good, err = readJournal(f); err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", path, err), f.Close())
	}
	return j, nil
}

// readJournal lists the chunks that were good.
func readJournal(r io.Reader) (map[journalKey]bool, error) {
	good := map[journalKey]bool{}
	lines := bufio.NewReaderSize(r, maxJournalLine)
	for {
		line, err := lines.ReadSlice('\n')
		if errors.Is(err, io.EOF) {
			return good, nil // a line that is cut off says nothing
		}
		if err != nil {
			return nil, fmt.Errorf("this is no journal of a verification: %w", err)
		}
		var l journalLine
		if err := json.Unmarshal(line, &l); err != nil || l.Object == "" {
			return nil, fmt.Errorf("this is no journal of a verification: line %.80q", line)
		}
		key := keyOf(l.Place, &l.Chunk)
		if l.OK {
			good[key] = true
		} else {
			delete(good, key)
		}
	}
}

// Done reports whether a chunk was found good before. Damaged ones are looked at again.
func (j *Journal) Done(c Chunk) bool { return j.good[keyOf(j.place, &c)] }

// Add writes down what was found of a chunk.
func (j *Journal) Add(c Checked) error {
	l := journalLine{Place: j.place, Chunk: c.Chunk, OK: c.Err == nil}
	if c.Err != nil {
		l.Error = c.Err.Error()
	}
	b, err := json.Marshal(l)
	if err != nil {
		return err
	}
	if len(b) >= maxJournalLine {
		l.Error = ""
		if b, err = json.Marshal(l); err != nil {
			return err
		}
	}
	_, err = j.file.Write(append(b, '\n'))
	return err
}

// Close closes the file.
func (j *Journal) Close() error { return j.file.Close() }
