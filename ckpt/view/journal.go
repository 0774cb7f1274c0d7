// SPDX-License-Identifier: Apache-2.0

package view

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"

	"golang.org/x/sync/errgroup"

	"phalanx/ckpt"
)

// Journal remembers which chunks were verified, so that a verification that was interrupted goes on where it was. It is a file
// of lines of JSON that is only appended to; a last line that is cut off is ignored. What it says of a chunk counts as long as
// the object and the index that names it are those that were verified: other bytes under the same name are verified anew.
type Journal struct {
	place   string
	objects map[string]string // what tells the present content of each object from another
	good    map[journalKey]bool
	file    *os.File
}

// journalLine is a line: a chunk and what was found.
type journalLine struct {
	Place string `json:"place"`
	Chunk
	Identity string `json:"identity"` // of the object
	OK       bool   `json:"ok"`
	Error    string `json:"error,omitempty"`
}

type journalKey struct {
	place, object, sum, identity string
	at, length                   int64
}

func keyOf(place string, c *Chunk, identity string) journalKey {
	return journalKey{place, c.Object, c.Sum, identity, c.At, c.Length}
}

// maxJournalLine bounds a line.
const maxJournalLine = 64 << 10

// OpenJournal opens the journal at a path, which need not exist, for a view. It asks for every object what it is now, so that one
// that is replaced later is not taken for verified.
func OpenJournal(ctx context.Context, path string, v *View) (*Journal, error) {
	j := &Journal{place: v.Place}
	var err error
	if j.objects, err = v.identities(ctx); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|os.O_APPEND, 0o644) //nolint:gosec // no secret is in it
	if err != nil {
		return nil, &JournalError{err}
	}
	j.file = f
	var end int64
	if j.good, end, err = readJournal(f); err == nil {
		err = f.Truncate(end) // a line that was cut off: what is appended must not become its end
	}
	if err != nil {
		return nil, &JournalError{errors.Join(fmt.Errorf("%s: %w", path, err), f.Close())}
	}
	return j, nil
}

// JournalError: the journal cannot be used; the checkpoint was not looked at.
type JournalError struct{ Err error }

func (e *JournalError) Error() string { return e.Err.Error() }

// Unwrap returns the reason.
func (e *JournalError) Unwrap() error { return e.Err }

// identities tells the present content of each object from another. One that is not there has "".
func (v *View) identities(ctx context.Context) (map[string]string, error) {
	of := func(name string) (string, error) {
		id, err := v.files.Identity(ctx, name)
		if errors.Is(err, ckpt.ErrNotFound) {
			return "", nil // verification says so
		}
		return id, err
	}
	index := ""
	if v.index != "" {
		var err error
		if index, err = of(v.index); err != nil {
			return nil, err
		}
	}
	out := map[string]string{}
	var mu sync.Mutex // guards out
	group, gctx := errgroup.WithContext(ctx)
	group.SetLimit(parallel)
	for _, name := range v.Names() {
		group.Go(func() error {
			if gctx.Err() != nil {
				return gctx.Err()
			}
			id, err := of(name)
			if err != nil {
				return err
			}
			if id != "" && index != "" {
				id += " by " + index
			}
			mu.Lock()
			defer mu.Unlock()
			out[name] = id
			return nil
		})
	}
	return out, group.Wait()
}

// readJournal lists the chunks that were good, and says where the last whole line ends.
func readJournal(r io.Reader) (_ map[journalKey]bool, end int64, _ error) {
	good := map[journalKey]bool{}
	lines := bufio.NewReaderSize(r, maxJournalLine)
	for {
		line, err := lines.ReadSlice('\n')
		if errors.Is(err, io.EOF) {
			return good, end, nil // a line that is cut off says nothing
		}
		if err != nil {
			return nil, 0, fmt.Errorf("this is no journal of a verification: %w", err)
		}
		var l journalLine
		if err := json.Unmarshal(line, &l); err != nil || l.Object == "" {
			return nil, 0, fmt.Errorf("this is no journal of a verification: line %.80q", line)
		}
		end += int64(len(line))
		key := keyOf(l.Place, &l.Chunk, l.Identity)
		if l.OK {
			good[key] = true
		} else {
			delete(good, key)
		}
	}
}

// Done reports whether a chunk was found good before. Damaged ones are looked at again.
func (j *Journal) Done(c Chunk) bool {
	id := j.objects[c.Object]
	return id != "" && j.good[keyOf(j.place, &c, id)]
}

// Add writes down what was found of a chunk.
func (j *Journal) Add(c Checked) error {
	l := journalLine{Place: j.place, Chunk: c.Chunk, Identity: j.objects[c.Object], OK: c.Err == nil}
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
