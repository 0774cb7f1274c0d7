// SPDX-License-Identifier: Apache-2.0

package view

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"phalanx/ckpt"
)

// ErrUnpublished: the folder is an attempt that was written and not published. It may be whole, and nobody promised it.
var ErrUnpublished = errors.New("written and not published")

// Options say what Open may take.
type Options struct {
	// Sound passes over the newest checkpoints of a job that a verification recorded as damaged.
	Sound bool
	// Unpublished opens an attempt that was not published, if all of it is there.
	Unpublished bool
}

// OpenStore opens the store at a path or URL for reading.
type OpenStore func(ctx context.Context, place string) (ckpt.Store, error)

// Open opens the checkpoint at a path of the local file system or a URL, whatever it is: a folder that a job published, the
// job's own folder (its newest checkpoint), a folder of another format, or a file. With open nil, folders of jobs are not looked for.
// Errors wrap ckpt.ErrNotFound when nothing
// is there, ErrUnpublished, *UnknownError for what is not read, and those of ckpt for what is damaged.
func Open(ctx context.Context, place string, open OpenStore, o Options) (*View, error) {
	v, err := openPlace(ctx, place, open, o)
	if err != nil {
		return nil, err
	}
	v.Place = place
	return v, nil
}

func openPlace(ctx context.Context, place string, open OpenStore, o Options) (*View, error) {
	local := !strings.Contains(place, "://")
	if local {
		path, err := filepath.Abs(place)
		if err != nil {
			return nil, err
		}
		place = path
		info, err := os.Stat(path)
		switch {
		case errors.Is(err, os.ErrNotExist):
			return nil, fmt.Errorf("%s: %w", path, ckpt.ErrNotFound)
		case err != nil:
			return nil, err
		case !info.IsDir():
			return openFile(ctx, NewDirectory(filepath.Dir(path)), filepath.Base(path))
		}
	}
	if v, err := openJob(ctx, place, open, o); v != nil || err != nil {
		return v, err
	}
	if local {
		return openFolder(ctx, NewDirectory(place), o)
	}
	if parent, base := Split(place); ckpt.ValidKey(base) == nil { // an object, or a prefix?
		s, err := open(ctx, parent)
		if err != nil {
			return nil, err
		}
		if _, err := s.Stat(ctx, base); err == nil {
			return openFile(ctx, prefixed{s, "", parent}, base)
		} else if !errors.Is(err, ckpt.ErrNotFound) {
			return nil, err
		}
		return openFolder(ctx, prefixed{s, base + "/", place}, o)
	}
	s, err := open(ctx, place)
	if err != nil {
		return nil, err
	}
	return openFolder(ctx, NewPrefix(s, ""), o)
}

// Split cuts the last element off a path or URL; base is "" when there is none to cut off. A query stays with the parent.
func Split(place string) (parent, base string) {
	scheme, rest, query := "", place, ""
	if strings.Contains(place, "://") {
		if at := strings.IndexByte(place, '?'); at >= 0 {
			rest, query = place[:at], place[at:]
		}
	}
	if at := strings.Index(rest, "://"); at >= 0 {
		scheme, rest = rest[:at+3], rest[at+3:]
	}
	rest = strings.TrimRight(rest, "/")
	at := strings.LastIndexByte(rest, '/')
	if at < 0 && scheme == "" && rest != "" && rest != "." && rest != ".." {
		return ".", rest // a relative path
	}
	if at < 0 || at == 0 && scheme == "file://" || at == len(rest)-1 {
		return place, ""
	}
	if at == 0 {
		return "/", rest[1:]
	}
	return scheme + rest[:at] + query, rest[at+1:]
}

// Join is the path or URL of what is below a place: Split takes it apart again.
func Join(place, below string) string {
	query := ""
	if at := strings.IndexByte(place, '?'); at >= 0 && strings.Contains(place, "://") {
		place, query = place[:at], place[at:]
	}
	return strings.TrimSuffix(place, "/") + "/" + below + query
}

// openJob opens a folder of a store that jobs write into: of an attempt, or the job's own. Both results are nil when the place
// is neither.
func openJob(ctx context.Context, place string, open OpenStore, o Options) (*View, error) {
	parent, base := Split(place)
	if base == "" || open == nil {
		return nil, nil
	}
	if above, job := Split(parent); job != "" {
		if a, err := ckpt.ParseAttempt(job, base); err == nil && a.Validate() == nil {
			return openAttempt(ctx, above, a, open, o)
		}
	}
	job, s, err := JobAt(ctx, place, open)
	if s == nil || err != nil {
		return nil, err
	}
	newest := ckpt.Latest
	if o.Sound {
		newest = ckpt.LatestSound
	}
	latest, err := newest(ctx, s, job)
	if err != nil {
		if len(latest.Problems) > 0 {
			return nil, fmt.Errorf("%w: %w", err, latest.Problems[0])
		}
		return nil, err
	}
	cp, err := ckpt.Open(ctx, s, latest.Record.Commit)
	if err != nil {
		return nil, err
	}
	v, err := FromCheckpoint(s, cp)
	if err == nil {
		v.Problems = latest.Problems
	}
	return v, err
}

// JobAt tells whether a path or URL is the folder of a job in a store, and gives the job's name and the store; nil when it is not.
func JobAt(ctx context.Context, place string, open OpenStore) (job string, s ckpt.Store, err error) {
	parent, base := Split(place)
	if base == "" || (ckpt.Attempt{Job: base}).Validate() != nil {
		return "", nil, nil
	}
	if !strings.Contains(place, "://") { // a store that cannot be opened because nothing is there is no error here
		if info, err := os.Stat(place); err != nil || !info.IsDir() {
			return "", nil, nil
		}
	}
	if s, err = open(ctx, parent); err != nil {
		return "", nil, err
	}
	if page, err := s.List(ctx, base+"/commits/", "", 1); err != nil || len(page) == 0 {
		return "", nil, err
	}
	return base, s, nil
}

// openAttempt opens the folder of an attempt below the root of a store.
func openAttempt(ctx context.Context, root string, a ckpt.Attempt, open OpenStore, o Options) (*View, error) {
	s, err := open(ctx, root)
	if err != nil {
		return nil, err
	}
	records, problems, err := ckpt.List(ctx, s, a.Job)
	if err != nil {
		return nil, err
	}
	for i := len(records) - 1; i >= 0; i-- {
		if records[i].Attempt() != a {
			continue
		}
		if records[i].Commit == nil {
			return nil, fmt.Errorf("%s was removed by retention: %w", a.Folder(), ckpt.ErrNotFound)
		}
		cp, err := ckpt.Open(ctx, s, records[i].Commit)
		if err != nil {
			return nil, err
		}
		return FromCheckpoint(s, cp)
	}
	for _, p := range problems {
		if !p.Link { // it may be the one that published this
			return nil, fmt.Errorf("whether %s was published cannot be told: commit object %d is damaged: %w: %w", a.Folder(), p.Number, p.Err, ckpt.ErrDamaged)
		}
	}
	return openFolder(ctx, NewPrefix(s, a.Folder()), o)
}

// maxListed bounds how many names of a folder are looked at.
const maxListed = 1 << 20

// openFolder opens a folder by what is in it.
func openFolder(ctx context.Context, f Files, o Options) (*View, error) {
	list, err := f.List(ctx, maxListed)
	if err != nil {
		return nil, err
	}
	if len(list) == 0 {
		return nil, fmt.Errorf("%s holds nothing: %w", f.Place(), ckpt.ErrNotFound)
	}
	has := func(name string) bool {
		_, found := slices.BinarySearchFunc(list, name, func(i ckpt.Info, name string) int { return strings.Compare(i.Key, name) })
		return found
	}
	if parts := partsOf(list); len(parts) > 0 { // also when a .metadata is beside them
		return openParts(ctx, f, parts, o)
	}
	switch {
	case has(RawIndexName):
		return openRaw(ctx, f)
	case has(ckpt.MetadataName):
		return openDCP(ctx, f)
	case isSafetensors(list):
		return openSafetensorsFolder(ctx, f, list)
	}
	return nil, &UnknownError{Place: f.Place(), Looks: folderLooks(list)}
}

// partsOf are the part files that a job's daemons leave beside their data.
func partsOf(list []ckpt.Info) []ckpt.Info {
	var parts []ckpt.Info
	for _, i := range list {
		rank, ok := strings.CutPrefix(i.Key, "part-")
		rank, json := strings.CutSuffix(rank, ".json")
		if ok && json && rank != "" && strings.Trim(rank, "0123456789") == "" {
			parts = append(parts, i)
		}
	}
	return parts
}

// openParts opens the folder of an attempt whose commit object is not there, if that is asked for.
func openParts(ctx context.Context, f Files, list []ckpt.Info, o Options) (*View, error) {
	if !o.Unpublished {
		return nil, fmt.Errorf("%s was %w", f.Place(), ErrUnpublished)
	}
	var parts []*ckpt.Part
	for _, i := range list {
		b, err := readAll(ctx, f, i.Key, ckpt.MaxPartBytes)
		if err != nil {
			return nil, err
		}
		p, err := ckpt.DecodePart(b)
		if err != nil {
			return nil, fmt.Errorf("%s/%s: %w", f.Place(), i.Key, err)
		}
		parts = append(parts, p)
	}
	manifests, err := ckpt.Merge(parts)
	if err != nil {
		return nil, fmt.Errorf("%s: %w: %w", f.Place(), ckpt.ErrIncomplete, err)
	}
	v := &View{Format: Phalanx, Container: parts[0].Container, Unpublished: true, Place: f.Place(), files: f,
		Notes: []string{"this attempt was never published: nobody promised that it is whole, and retention may delete it"}}
	globals, err := ckpt.GlobalTensors(manifests)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", f.Place(), err)
	}
	v.hold(globals, manifests)
	return v, nil
}

// openFile opens a checkpoint of one file by its first bytes.
func openFile(ctx context.Context, f Files, name string) (*View, error) {
	size, err := f.Size(ctx, name)
	if err != nil {
		return nil, err
	}
	head := make([]byte, min(size, 16))
	if err := f.Read(ctx, name, 0, head); err != nil {
		return nil, err
	}
	if bytes.HasPrefix(head, []byte("PK\x03\x04")) {
		return openTorch(ctx, f, name)
	}
	if len(head) > 8 && head[8] == '{' && head[7] == 0 && head[6] == 0 { // a length, and the JSON that it is of
		return openSafetensorsFile(ctx, f, name)
	}
	return nil, &UnknownError{Place: Join(f.Place(), name), Looks: fileLooks(head)}
}
