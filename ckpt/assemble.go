// SPDX-License-Identifier: Apache-2.0

package ckpt

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sync/errgroup"

	"phalanx"
	"phalanx/ckpt/dcp"
	"phalanx/ckpt/pickle"
)

// Assemble makes the parts of a checkpoint of what programs have written and of the index that names it. Every box of the index
// must be on a sheet, with the same dtype and size; what is on a sheet and not in the index is left out. Whether the boxes cover
// their tensors is for Merge to prove.
//
// A coordinate has each name once, so a rank that wrote several boxes of a tensor gets several coordinates; else they are the
// ranks that wrote anything, in order. It is a pure function: any host makes the same parts.
func Assemble(a Attempt, sheets []*Sheet, index *dcp.Metadata) ([]*Part, error) {
	as := &assembler{attempt: a, at: map[place]where{}}
	sheets = slices.Clone(sheets)
	slices.SortFunc(sheets, func(a, b *Sheet) int {
		return cmp.Or(cmp.Compare(a.Writer, b.Writer), cmp.Compare(a.Batch, b.Batch))
	})
	as.sheets = sheets
	as.claims = make([][]*claim, len(sheets))
	for i, s := range sheets {
		as.claims[i] = make([]*claim, len(s.Entries))
		for k, e := range s.Entries {
			p := place{e.File, e.At}
			if _, twice := as.at[p]; twice {
				return nil, fmt.Errorf("byte %d of %s was written twice: %w", e.At, e.File, ErrIncomplete)
			}
			as.at[p] = where{i, k}
		}
	}
	for i := range index.Tensors {
		if err := as.tensor(&index.Tensors[i], index.Paths); err != nil {
			return nil, fmt.Errorf("tensor %.80q: %w", index.Tensors[i].Name, err)
		}
	}
	for _, o := range index.Objects {
		if err := as.value(o, index.Paths); err != nil {
			return nil, fmt.Errorf("value %.80q: %w", o.Name, err)
		}
	}
	return as.parts()
}

// place is where the index says that a box is.
type place struct {
	file string
	at   int64
}

// where is a box's sheet and entry.
type where struct{ sheet, entry int }

// claim is what the index says of a written box.
type claim struct {
	info phalanx.TensorInfo
	Origin
}

type assembler struct {
	attempt Attempt
	sheets  []*Sheet
	at      map[place]where
	claims  [][]*claim // by sheet and entry; nil: not in the index
	empty   []claim    // without elements: nobody need have written them
}

func (as *assembler) tensor(t *dcp.Tensor, paths map[string][]any) error {
	if t.DType == "" {
		return fmt.Errorf("torch.%s cannot be stored: %w", t.DTypeName, ErrFormat)
	}
	origin := Origin{RequiresGrad: t.RequiresGrad, Path: pathOf(t.Name, paths)}
	whole := phalanx.TensorInfo{Name: t.Name, DType: t.DType, Shape: t.Shape}
	filled := 0
	for _, c := range t.Chunks {
		if c.Elements() > 0 {
			filled++
		}
	}
	if filled == 0 {
		as.empty = append(as.empty, claim{whole, origin})
		return nil
	}
	for _, c := range t.Chunks {
		if c.Elements() == 0 {
			continue
		}
		info := whole
		if filled > 1 || !slices.Equal(c.Size, t.Shape) {
			info.Shape, info.Global = c.Size, &phalanx.Global{Shape: t.Shape, Offset: c.Offset}
		}
		if err := as.claim(place{c.File, c.At}, c.Length, c.Transforms, claim{info, origin}); err != nil {
			return err
		}
	}
	return nil
}

func (as *assembler) value(o dcp.Object, paths map[string][]any) error {
	origin := Origin{Value: true, Path: pathOf(o.Name, paths)}
	info := phalanx.TensorInfo{Name: o.Name, DType: "u8", Shape: []int{int(o.Length)}}
	return as.claim(place{o.File, o.At}, o.Length, o.Transforms, claim{info, origin})
}

func pathOf(name string, paths map[string][]any) Path {
	if p := paths[name]; len(p) > 0 && !slices.Equal(p, []any{name}) {
		return p
	}
	return nil
}

// claim gives a written box its name.
func (as *assembler) claim(p place, length int64, transforms []string, c claim) error {
	if len(transforms) > 0 {
		return fmt.Errorf("its bytes were transformed by %v before they were handed over, so nobody could check them: save without extensions: %w", transforms, ErrFormat)
	}
	w, found := as.at[p]
	if !found {
		return fmt.Errorf("the index has %d bytes at %d of %s, where nobody wrote: %w", length, p.at, p.file, ErrIncomplete)
	}
	e := &as.sheets[w.sheet].Entries[w.entry]
	switch {
	case as.claims[w.sheet][w.entry] != nil:
		return fmt.Errorf("the index has two names for %d bytes at %d of %s: %w", length, p.at, p.file, ErrIncomplete)
	case e.Length != length || e.Value != c.Value || e.DType != c.info.DType || !slices.Equal(e.Shape, c.info.Shape):
		return fmt.Errorf("the index has %s%v in %d bytes at %d of %s, where rank %d wrote %s%v in %d: %w", c.info.DType, c.info.Shape, length, p.at,
			p.file, as.sheets[w.sheet].Writer, e.DType, e.Shape, e.Length, ErrIncomplete)
	}
	as.claims[w.sheet][w.entry] = &c
	return nil
}

// builder makes one coordinate's part.
type builder struct {
	part    *Part
	writer  phalanx.Rank
	names   map[string]bool
	objects map[where]int // sheet and object: place in the part
	layout  []phalanx.TensorInfo
}

// parts deals the claimed boxes to coordinates.
func (as *assembler) parts() ([]*Part, error) {
	var builders []*builder
	fresh := func(writer phalanx.Rank) *builder {
		b := &builder{writer: writer, names: map[string]bool{}, objects: map[where]int{}, part: &Part{
			Format: handedFormat, Container: ContainerDCP, Attempt: as.attempt.Name(), Rank: phalanx.Rank(len(builders)), Coordinate: len(builders),
			Tensors: []PartTensor{}, Objects: []Object{}, Chunks: []StoredChunk{},
		}}
		builders = append(builders, b)
		return b
	}
	for i, s := range as.sheets {
		byEntry := make([][]StoredChunk, len(s.Entries))
		for _, c := range s.Chunks {
			byEntry[c.Tensor] = append(byEntry[c.Tensor], c)
		}
		for k, c := range as.claims[i] {
			if c == nil {
				continue
			}
			at := slices.IndexFunc(builders, func(b *builder) bool { return b.writer == s.Writer && !b.names[c.info.Name] })
			if at < 0 {
				fresh(s.Writer)
				at = len(builders) - 1
			}
			builders[at].add(i, s, c, s.Entries[k].d1(c.info), byEntry[k])
		}
	}
	if len(builders) == 0 {
		if len(as.empty) == 0 {
			return nil, fmt.Errorf("%w: %w", errUnindexed, ErrIncomplete)
		}
		fresh(0)
	}
	for _, c := range as.empty {
		nothing := SheetEntry{}
		builders[0].add(0, nil, &c, nothing.d1(c.info), nil)
	}
	parts := make([]*Part, len(builders))
	for i, b := range builders {
		b.part.Layout = layoutHash(b.layout)
		parts[i] = b.part
		if err := b.part.validate(); err != nil {
			return nil, fmt.Errorf("part of rank %d: %w: %w", b.writer, err, ErrFormat)
		}
	}
	return parts, nil
}

func (b *builder) add(sheet int, s *Sheet, c *claim, d1 phalanx.Digest, chunks []StoredChunk) {
	index := len(b.part.Tensors)
	t := c.info
	if t.Shape == nil {
		t.Shape = []int{}
	}
	b.names[t.Name] = true
	b.layout = append(b.layout, t)
	b.part.Tensors = append(b.part.Tensors, PartTensor{Index: index, TensorInfo: t, D1: d1, Origin: c.Origin})
	for _, chunk := range chunks {
		from := where{sheet, chunk.Object}
		object, listed := b.objects[from]
		if !listed {
			object = len(b.part.Objects)
			b.objects[from] = object
			b.part.Objects = append(b.part.Objects, s.Objects[chunk.Object])
		}
		chunk.Tensor, chunk.Object = index, object
		b.part.Chunks = append(b.part.Chunks, chunk)
	}
}

// Handed is a save that programs made and that is to be published.
type Handed struct {
	Attempt Attempt
	Branch  uint64
	Index   []byte // PyTorch's index of it, in any version
	UnixNS  int64
	Spec    json.RawMessage
}

// PublishHanded publishes what programs wrote into an attempt's folder under the names that their index gives. The index that
// is stored is made anew, so that every PyTorch from 2.6 on reads it. It may be repeated. Errors are those of Publish; an index
// that cannot be read is an ErrFormat.
func PublishHanded(ctx context.Context, s Store, h Handed) (Record, error) {
	fail := func(err error) (Record, error) {
		return Record{}, fmt.Errorf("publish %s: %w", h.Attempt.Folder(), err)
	}
	index, err := dcp.DecodeMetadata(h.Index, pickle.Limits{})
	if err != nil {
		return fail(fmt.Errorf("%w: %w", err, ErrFormat))
	}
	sheets, err := readSheets(ctx, s, h.Attempt)
	if err != nil {
		return fail(err)
	}
	parts, err := Assemble(h.Attempt, sheets, index)
	if err != nil {
		return fail(err)
	}
	manifests, err := Merge(parts)
	if err != nil {
		return fail(fmt.Errorf("%w: %w", ErrIncomplete, err))
	}
	p := Publication{Attempt: h.Attempt, Branch: h.Branch, UnixNS: h.UnixNS, Spec: h.Spec}
	for i, m := range manifests {
		p.Labels = append(p.Labels, phalanx.Label{Step: h.Attempt.Step, Generation: h.Attempt.Generation, Digest: m.StateDigest, Coordinate: i})
	}
	refs := make([]PartRef, len(parts))
	group, gctx := errgroup.WithContext(ctx)
	group.SetLimit(requestLimit)
	for i, part := range parts {
		group.Go(func() error {
			b, err := part.Encode()
			if err != nil {
				return err
			}
			refs[i] = PartRef{Name: partName(part.Rank), Rank: part.Rank, Coordinate: part.Coordinate, Size: int64(len(b)),
				CRC64NVME: Checksum(b), SHA256: sha256Hex(b)}
			return putOnce(gctx, s, h.Attempt.Folder()+"/"+refs[i].Name, b)
		})
	}
	if err := group.Wait(); err != nil {
		return fail(err)
	}
	return Publish(ctx, s, p, refs)
}

// Begun is an attempt that a program may write into.
type Begun struct {
	Attempt Attempt
	Branch  uint64
}

// BeginOptions say on whose behalf an attempt is made.
type BeginOptions struct {
	// Generation is the number of the job's generation as the program was started in it; 0: it is of no running job, and follows
	// whatever is there.
	Generation uint64
	// NewBranch begins a branch: steps may be lower than those that are published.
	NewBranch bool
	Term      uint64 // random: no two attempts have the same
}

// Begin names an attempt for a step, or says why nothing that it would write could be published: a *FencedError. It writes
// nothing.
func Begin(ctx context.Context, s Store, job string, step phalanx.Step, o BeginOptions) (Begun, error) {
	b := Begun{Attempt: Attempt{Job: job, Step: step, Term: o.Term}}
	if err := b.Attempt.Validate(); err != nil {
		return Begun{}, err
	}
	last, err := findTip(ctx, s, job)
	if err != nil {
		return Begun{}, fmt.Errorf("begin to save step %d of %s: %w", step, job, err)
	}
	b.Attempt.Generation = phalanx.Generation{Number: max(o.Generation, 1)}
	if last.newest.Number > 0 {
		have := last.newest.Attempt().Generation
		b.Branch = last.newest.Branch()
		b.Attempt.Generation.Epoch = have.Epoch
		switch {
		case o.NewBranch:
			b.Branch++
			b.Attempt.Generation.Epoch++ // above all numbers that the old branch may reach
		case o.Generation == 0:
			b.Attempt.Generation = have
		}
	}
	if err := (Publication{Attempt: b.Attempt, Branch: b.Branch}).mayFollow(last); err != nil {
		return Begun{}, err
	}
	return b, nil
}

// ErrPublished: an attempt that was to be given up is published.
var ErrPublished = errors.New("is published")

// Abort deletes what was written into an attempt that will not be published. What arrives later, GC deletes once the attempt is
// fenced. ErrPublished when it is too late.
func Abort(ctx context.Context, s Store, a Attempt) error {
	records, problems, err := List(ctx, s, a.Job)
	if err != nil {
		return fmt.Errorf("abort %s: %w", a.Folder(), err)
	}
	if len(problems) > 0 {
		return fmt.Errorf("abort %s: whether it was published cannot be told: %w", a.Folder(), problems[0])
	}
	for _, r := range records {
		if r.Attempt() == a {
			return fmt.Errorf("%s %w as commit %d", a.Folder(), ErrPublished, r.Number)
		}
	}
	c := &collector{s: s, inv: &Inventory{Job: a.Job}}
	if err := c.sweep(ctx, a); err != nil {
		return fmt.Errorf("abort %s: %w", a.Folder(), err)
	}
	return nil
}
