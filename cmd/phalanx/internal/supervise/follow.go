// SPDX-License-Identifier: Apache-2.0

package supervise

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"phalanx"
)

const (
	followEvery = 50 * time.Millisecond
	// maxLine is where a line without an end is cut, so that a trainer that never ends one costs bounded memory.
	maxLine = 1 << 20
)

// follower prints what the trainers of this host append to their files, line by line with the member's name in front. One
// goroutine at a time uses it.
type follower struct {
	dir   string // DIR/log
	host  string
	out   io.Writer
	files map[string]*followed
	mute  bool // the reader of stdout has gone; the trainers go on
}

type followed struct {
	prefix  string
	offset  int64
	partial []byte // of a line that has no end yet
}

// newFollower begins at the end of the files that exist: their lines were printed by an earlier run.
func newFollower(dir, host string, out io.Writer) *follower {
	f := &follower{dir: dir, host: host, out: out, files: map[string]*followed{}}
	for _, name := range f.names() {
		if info, err := os.Stat(filepath.Join(dir, name)); err == nil {
			f.files[name].offset = info.Size()
		}
	}
	return f
}

// run polls until ctx ends. The caller scans once more for what came last.
func (f *follower) run(ctx context.Context) {
	ticker := time.NewTicker(followEvery)
	defer ticker.Stop()
	for {
		f.scan()
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// names lists the trainers' files of this host, oldest incarnation of each member first.
func (f *follower) names() []string {
	entries, err := os.ReadDir(f.dir)
	if err != nil {
		return nil // not made yet
	}
	type life struct {
		name      string
		index, of uint64
	}
	var lives []life
	for _, e := range entries {
		index, of, ok := f.parse(e.Name())
		if !ok {
			continue
		}
		lives = append(lives, life{e.Name(), index, of})
		if f.files[e.Name()] == nil {
			f.files[e.Name()] = &followed{prefix: string(phalanx.NewMemberID(f.host, int(index))) + " | "}
		}
	}
	if len(f.files) > len(lives) { // files of old lives were removed
		maps.DeleteFunc(f.files, func(name string, t *followed) bool {
			gone := !slices.ContainsFunc(lives, func(l life) bool { return l.name == name })
			if gone && len(t.partial) > 0 {
				f.print(t.prefix, t.partial)
			}
			return gone
		})
	}
	slices.SortFunc(lives, func(a, b life) int {
		if a.index != b.index {
			return int(a.index) - int(b.index)
		}
		return int(a.of) - int(b.of)
	})
	names := make([]string, len(lives))
	for i, l := range lives {
		names[i] = l.name
	}
	return names
}

// parse takes HOST.INDEX.INCARNATION.log apart. Logs of daemons and other hosts' files do not fit.
func (f *follower) parse(name string) (index, incarnation uint64, ok bool) {
	rest, ok1 := strings.CutPrefix(name, f.host+".")
	rest, ok2 := strings.CutSuffix(rest, ".log")
	a, b, ok3 := strings.Cut(rest, ".")
	index, err1 := strconv.ParseUint(a, 10, 31)
	incarnation, err2 := strconv.ParseUint(b, 10, 63)
	return index, incarnation, ok1 && ok2 && ok3 && err1 == nil && err2 == nil
}

// scan prints all lines that are complete by now.
func (f *follower) scan() {
	for _, name := range f.names() {
		f.read(filepath.Join(f.dir, name), f.files[name])
	}
}

// finish prints everything, lines without an end included.
func (f *follower) finish() {
	f.scan()
	for _, name := range f.names() {
		if t := f.files[name]; len(t.partial) > 0 {
			f.print(t.prefix, t.partial)
			t.partial = nil
		}
	}
}

func (f *follower) read(path string, t *followed) {
	info, err := os.Stat(path)
	if err != nil || info.Size() == t.offset {
		return
	}
	if info.Size() < t.offset {
		t.offset = 0 // rotated by copy and truncate
	}
	file, err := os.Open(path)
	if err != nil {
		return // asked again at the next scan
	}
	defer file.Close()
	chunk := make([]byte, 64<<10)
	for {
		n, err := file.ReadAt(chunk, t.offset)
		t.offset += int64(n)
		t.partial = append(t.partial, chunk[:n]...)
		for {
			line, rest, ended := bytes.Cut(t.partial, []byte{'\n'})
			if !ended {
				break
			}
			f.print(t.prefix, line)
			t.partial = rest
		}
		if len(t.partial) > maxLine {
			f.print(t.prefix, t.partial)
			t.partial = nil
		}
		if n == 0 || err != nil && !errors.Is(err, io.EOF) || n < len(chunk) {
			t.partial = bytes.Clone(t.partial) // lets the printed part go
			return
		}
	}
}

func (f *follower) print(prefix string, line []byte) {
	if f.mute {
		return
	}
	if _, err := fmt.Fprintf(f.out, "%s%s\n", prefix, line); err != nil {
		f.mute = true
	}
}
