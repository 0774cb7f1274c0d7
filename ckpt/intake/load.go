// SPDX-License-Identifier: Apache-2.0

package intake

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"sync"

	"phalanx"
	"phalanx/ckpt"
	"phalanx/ckpt/view"
)

// openRequest names a published checkpoint.
type openRequest struct {
	Job string `json:"job"`
	// Which is latest, step-N, or the name of an attempt's folder.
	Which string `json:"which"`
	// Brief leaves out what it holds.
	Brief bool `json:"brief"`
}

// opened is what a checkpoint holds.
type opened struct {
	Job        string             `json:"job"`
	Attempt    string             `json:"attempt"`
	Number     uint64             `json:"number"`
	Step       phalanx.Step       `json:"step"`
	Generation phalanx.Generation `json:"generation"`
	Container  string             `json:"container"`
	Bytes      int64              `json:"size_bytes"`
	Tensors    []openedTensor     `json:"tensors,omitempty"`
	Values     []openedValue      `json:"values,omitempty"`
	Files      []openedFile       `json:"files,omitempty"`
}

type openedTensor struct {
	Name         string     `json:"name"`
	DType        string     `json:"dtype"`
	Shape        []int      `json:"shape"`
	RequiresGrad bool       `json:"requires_grad,omitempty"`
	Path         []any      `json:"path,omitempty"`
	Chunks       []view.Box `json:"chunks"`
}

type openedValue struct {
	Name   string `json:"name"`
	Length int64  `json:"length"`
	Path   []any  `json:"path,omitempty"`
}

type openedFile struct {
	Name string `json:"name"`
	Size int64  `json:"size_bytes"`
}

func (s *Service) open(ctx context.Context, q openRequest) (opened, error) {
	job, err := s.job(q.Job)
	if err != nil {
		return opened{}, err
	}
	v, err := s.view(ctx, job, q.Which)
	if err != nil {
		return opened{}, err
	}
	c := v.Published
	o := opened{Job: job, Attempt: c.Attempt, Number: c.Number, Step: c.Step, Generation: c.Generation, Container: c.Container, Bytes: v.Bytes()}
	if q.Brief {
		return o, nil
	}
	for i := range v.Tensors {
		t := &v.Tensors[i]
		x := openedTensor{Name: t.Name, DType: t.DType, Shape: t.Shape, RequiresGrad: t.RequiresGrad, Path: v.Paths[t.Name], Chunks: []view.Box{}}
		for k := range t.Shards {
			x.Chunks = append(x.Chunks, t.Shards[k].Box)
		}
		o.Tensors = append(o.Tensors, x)
	}
	for _, x := range v.Objects {
		o.Values = append(o.Values, openedValue{x.Name, x.Length, v.Paths[x.Name]})
	}
	for _, x := range v.Checkpoint.Objects() {
		o.Files = append(o.Files, openedFile{x.Name, x.Size})
	}
	if m := c.Metadata; m != nil {
		o.Files = append(o.Files, openedFile{m.Name, m.Size})
	}
	return o, nil
}

// keptViews is how many open checkpoints are kept: a loader asks for one in many requests. A published one never changes.
const keptViews = 4

// view opens a published checkpoint.
func (s *Service) view(ctx context.Context, job, which string) (*view.View, error) {
	if v := s.kept(job, which); v != nil {
		return v, nil
	}
	commit, err := s.find(ctx, job, which)
	if err != nil {
		return nil, err
	}
	if v := s.kept(job, commit.Attempt); v != nil {
		return v, nil
	}
	cp, err := ckpt.Open(ctx, s.Store, commit)
	if err != nil {
		return nil, err
	}
	v, err := view.FromCheckpoint(s.Store, cp)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.views = append(s.views, v); len(s.views) > keptViews {
		s.views = slices.Delete(s.views, 0, 1)
	}
	return v, nil
}

func (s *Service) kept(job, attempt string) *view.View {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, v := range s.views {
		if v.Published.Job == job && v.Published.Attempt == attempt {
			return v
		}
	}
	return nil
}

// find looks for the commit that a request names.
func (s *Service) find(ctx context.Context, job, which string) (*ckpt.Commit, error) {
	if which == "" || which == "latest" {
		latest, err := ckpt.LatestSound(ctx, s.Store, job)
		if err != nil {
			return nil, err
		}
		return latest.Record.Commit, nil
	}
	step, err := stepOf(which)
	byStep := err == nil
	if _, perr := ckpt.ParseAttempt(job, which); perr != nil && !byStep {
		return nil, usage("checkpoint %.80q: want latest, step-N or the folder of a checkpoint", which)
	}
	records, problems, err := ckpt.List(ctx, s.Store, job)
	if err != nil {
		return nil, err
	}
	for i := len(records) - 1; i >= 0; i-- { // the newest of a step: a branch may have saved it again
		r := records[i]
		if a := r.Attempt(); byStep && a.Step != step || !byStep && a.Name() != which {
			continue
		}
		if r.Commit == nil {
			return nil, fmt.Errorf("%s/%s was removed by retention: %w", job, which, ckpt.ErrNotFound)
		}
		return r.Commit, nil
	}
	if len(problems) > 0 {
		return nil, fmt.Errorf("%s/%s: whether it was published cannot be told: %w", job, which, problems[0])
	}
	return nil, fmt.Errorf("%s/%s was not published; phalanx ckpt ls --job %s lists what was: %w", job, which, job, ckpt.ErrNotFound)
}

// stepOf reads step-N.
func stepOf(which string) (phalanx.Step, error) {
	if len(which) < 6 || which[:5] != "step-" {
		return 0, errors.New("no step")
	}
	n, err := strconv.ParseUint(which[5:], 10, 64)
	return phalanx.Step(n), err
}

type listRequest struct {
	Job string `json:"job"`
}

type listed struct {
	Job         string       `json:"job"`
	Checkpoints []listedItem `json:"checkpoints"`
}

type listedItem struct {
	Number  uint64       `json:"number"`
	Step    phalanx.Step `json:"step"`
	Attempt string       `json:"attempt"`
}

func (s *Service) list(ctx context.Context, q listRequest) (listed, error) {
	job, err := s.job(q.Job)
	if err != nil {
		return listed{}, err
	}
	records, _, err := ckpt.List(ctx, s.Store, job)
	if err != nil && !errors.Is(err, ckpt.ErrNoCheckpoint) {
		return listed{}, err
	}
	l := listed{Job: job, Checkpoints: []listedItem{}}
	for _, r := range records {
		if r.Commit != nil {
			l.Checkpoints = append(l.Checkpoints, listedItem{r.Number, r.Commit.Step, r.Commit.Attempt})
		}
	}
	return l, nil
}

// readRequest asks for boxes of tensors, then values, in this order.
type readRequest struct {
	Job     string    `json:"job"`
	Attempt string    `json:"attempt"`
	Boxes   []readBox `json:"boxes"`
	Values  []string  `json:"values"`
}

type readBox struct {
	Name string `json:"name"`
	view.Box
}

// Frames of an answer to read: one byte that says what follows, its length in eight bytes, little-endian, and that many bytes. A
// box may come in several frames, which together are its elements, row-major. After an error nothing comes.
const (
	frameData  = 'D'
	frameError = 'E' // a Failure
	frameEnd   = '.' // all that was asked for was sent; its length is 0
)

// readPiece is the most of a tensor that is in memory for one request.
const readPiece = 256 << 20

// buffers are reused by reads.
var buffers = sync.Pool{New: func() any { return new([]byte) }}

func (s *Service) read(w http.ResponseWriter, r *http.Request) {
	q, err := decodeBody[readRequest](s, w, r)
	var v *view.View
	if err == nil {
		var job string
		if job, err = s.job(q.Job); err == nil {
			v, err = s.view(r.Context(), job, q.Attempt)
		}
	}
	if err != nil {
		failed(w, err)
		return
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	send := func(kind byte, p []byte) error {
		head := binary.LittleEndian.AppendUint64([]byte{kind}, uint64(len(p)))
		if _, err := w.Write(head); err != nil {
			return err
		}
		_, err := w.Write(p)
		return err
	}
	if err := s.stream(r.Context(), v, &q, send); err != nil {
		kind, _ := kindOf(err)
		b, _ := json.Marshal(Failure{err.Error(), kind}) // two strings
		_ = send(frameError, b)                          // the program has gone: nobody to tell
		return
	}
	_ = send(frameEnd, nil) // likewise
}

func (s *Service) stream(ctx context.Context, v *view.View, q *readRequest, send func(byte, []byte) error) error {
	buffer := buffers.Get().(*[]byte)
	defer buffers.Put(buffer)
	places := make(map[string]int, len(v.Tensors))
	for i := range v.Tensors {
		places[v.Tensors[i].Name] = i
	}
	for _, b := range q.Boxes {
		i, found := places[b.Name]
		if !found {
			return fmt.Errorf("checkpoint %s has no tensor %.80q: %w", v.Place, b.Name, ckpt.ErrNotFound)
		}
		if err := b.Check(v.Tensors[i].Shape); err != nil {
			return usage("tensor %.80q: %w", b.Name, err)
		}
		for _, piece := range cut(b.Box, int64(phalanx.DTypeSize(v.Tensors[i].DType)), readPiece) {
			n := piece.Elements() * int64(phalanx.DTypeSize(v.Tensors[i].DType))
			if int64(cap(*buffer)) < n {
				*buffer = make([]byte, n)
			}
			p := (*buffer)[:n]
			if err := v.ReadBox(ctx, i, piece, p); err != nil {
				return err
			}
			if err := send(frameData, p); err != nil {
				return err
			}
		}
	}
	for _, name := range q.Values {
		k := slices.IndexFunc(v.Objects, func(o view.Object) bool { return o.Name == name })
		if k < 0 {
			return fmt.Errorf("checkpoint %s has no value %.80q: %w", v.Place, name, ckpt.ErrNotFound)
		}
		p, err := v.ReadObject(ctx, &v.Objects[k])
		if err != nil {
			return err
		}
		if err := send(frameData, p); err != nil {
			return err
		}
	}
	return nil
}

// cut cuts a box along its outermost dimension of more than one element into boxes of at most so many bytes, where rows are not
// larger themselves. In order, their elements are the box's.
func cut(b view.Box, size, most int64) []view.Box {
	d := slices.IndexFunc(b.Shape, func(n int) bool { return n != 1 })
	if d < 0 || b.Elements()*size <= most {
		return []view.Box{b}
	}
	rows := max(1, int(most/(b.Elements()/int64(b.Shape[d])*size)))
	var out []view.Box
	for first := 0; first < b.Shape[d]; first += rows {
		piece := view.Box{Offset: slices.Clone(b.Offset), Shape: slices.Clone(b.Shape)}
		piece.Offset[d] += first
		piece.Shape[d] = min(rows, b.Shape[d]-first)
		out = append(out, piece)
	}
	return out
}

// fileRequest asks for the record at a byte of a file, or for the index.
type fileRequest struct {
	Job     string `json:"job"`
	Attempt string `json:"attempt"`
	Name    string `json:"name"`
	At      int64  `json:"at"`
}

// fromHeader says at which byte of the file an answer begins.
const fromHeader = "Phalanx-From"

func (s *Service) file(w http.ResponseWriter, r *http.Request) {
	q, err := decodeBody[fileRequest](s, w, r)
	var from int64
	var content []byte
	if err == nil {
		from, content, err = s.readFile(r.Context(), q)
	}
	if err != nil {
		failed(w, err)
		return
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("Content-Length", strconv.Itoa(len(content)))
	w.Header().Set(fromHeader, strconv.FormatInt(from, 10))
	_, _ = w.Write(content) // the program has gone: nobody to tell
}

func (s *Service) readFile(ctx context.Context, q fileRequest) (int64, []byte, error) {
	job, err := s.job(q.Job)
	if err != nil {
		return 0, nil, err
	}
	v, err := s.view(ctx, job, q.Attempt)
	if err != nil {
		return 0, nil, err
	}
	if q.Name == ckpt.MetadataName {
		b, err := v.Checkpoint.ReadIndex(ctx)
		return 0, b, err
	}
	return v.Checkpoint.ReadRecord(ctx, q.Name, q.At)
}
