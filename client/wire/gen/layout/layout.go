// SPDX-License-Identifier: Apache-2.0

// Package layout reads page.toml, places every cell and word, and prints the result as Go, C and Python. It exists apart
// from the command so that a test can compare what it prints with what is checked in.
package layout

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"

	"github.com/pelletier/go-toml/v2"
)

// Page is page.toml with offsets filled in.
type Page struct {
	Magic           uint64   `toml:"magic"`
	Major           int      `toml:"major"`
	Minor           int      `toml:"minor"`
	PageBytes       int      `toml:"page_bytes"`
	Bells           int      `toml:"bells"`
	BellBytes       int      `toml:"bell_bytes"`
	SlabHeaderBytes int      `toml:"slab_header_bytes"`
	TensorAlign     int      `toml:"tensor_align"`
	Header          []Header `toml:"header"`
	Enums           []Enum   `toml:"enum"`
	Regions         []Region `toml:"region"`
	Cells           []Item   `toml:"cell"`
	Words           []Item   `toml:"word"`
	Records         []Item   `toml:"record"`
}

// Header is one plain word of the file's header.
type Header struct {
	Name string `toml:"name"`
}

// Enum is a closed set of values that fit in one word.
type Enum struct {
	Name   string   `toml:"name"`
	Doc    string   `toml:"doc"`
	Lines  []string `toml:"values"`
	Values []Value  `toml:"-"`
}

// Value is one constant of an enumeration.
type Value struct {
	Name   string
	Number int
	Doc    string
}

// Region is a range of the page with one kind of writer.
type Region struct {
	Name   string `toml:"name"`
	Offset int    `toml:"offset"`
	End    int    `toml:"end"`
	used   int
}

// Item is a cell, a plain word or a record, Count times in a row.
type Item struct {
	Name   string   `toml:"name"`
	Go     string   `toml:"go"`
	Region string   `toml:"region"`
	Doc    string   `toml:"doc"`
	Count  int      `toml:"count"`
	Lines  []string `toml:"fields"`
	Room   int      `toml:"words"` // fixed words of a record
	Fields []Field  `toml:"-"`
	Size   int      `toml:"-"` // payload words
	Offset int      `toml:"-"` // bytes from the start of the file
	Stride int      `toml:"-"` // bytes between two of them
}

// Field is a named part of a payload.
type Field struct {
	Name  string
	Kind  string // without the array length
	Array int    // 0 for a single value
	Word  int    // index of its first word in the payload
}

// kinds are the words of each field type and its Go type.
var kinds = map[string]struct {
	words  int
	golang string
}{
	"u64": {1, "uint64"}, "i64": {1, "int64"}, "int": {1, "int"}, "bool": {1, "bool"},
	"step": {1, "phalanx.Step"}, "slot": {1, "phalanx.Slot"}, "rank": {1, "phalanx.Rank"},
	"incarnation": {1, "phalanx.Incarnation"}, "gen": {2, "phalanx.Generation"},
	"digest": {2, "phalanx.Digest"}, "member": {8, "phalanx.MemberID"},
}

// Generate returns the content of every generated file by name.
func Generate(text []byte) (map[string][]byte, error) {
	p, err := Parse(text)
	if err != nil {
		return nil, err
	}
	if err := p.unique(); err != nil {
		return nil, err
	}
	golang, err := p.golang()
	if err != nil {
		return nil, err
	}
	return map[string][]byte{
		"layout_gen.go":                     golang,
		"../../python/csrc/phalanx_page.h":  p.c(),
		"../../python/src/phalanx/_page.py": p.python(),
	}, nil
}

// Parse reads page.toml and places everything. Unknown keys, unknown types and overfull regions are errors.
func Parse(text []byte) (*Page, error) {
	p := &Page{}
	if err := toml.NewDecoder(bytes.NewReader(text)).DisallowUnknownFields().Decode(p); err != nil {
		return nil, fmt.Errorf("parse page.toml: %w", err)
	}
	for i := range p.Enums {
		if err := p.Enums[i].parse(); err != nil {
			return nil, err
		}
	}
	// The order inside a region is that of the file within cells, words and records; these follow each other.
	for i := range p.Cells {
		if err := p.fields(&p.Cells[i]); err != nil {
			return nil, err
		}
		if err := p.place(&p.Cells[i], align(8+16*p.Cells[i].Size)); err != nil {
			return nil, err
		}
	}
	for i := range p.Records {
		r := &p.Records[i]
		if err := p.fields(r); err != nil {
			return nil, err
		}
		if r.Size > r.Room {
			return nil, fmt.Errorf("record %s has %d words, it has room for %d", r.Name, r.Size, r.Room)
		}
		r.Size = r.Room
		if err := p.place(r, 8*r.Room); err != nil {
			return nil, err
		}
	}
	return p, p.placeWords()
}

// placeWords puts plain words at the end of their region, growing downwards, so that new cells and new words never move
// each other.
func (p *Page) placeWords() error {
	low := map[string]int{}
	for i := range p.Words {
		w := &p.Words[i]
		r := p.region(w.Region)
		if r == nil {
			return fmt.Errorf("word %s: no region %q", w.Name, w.Region)
		}
		w.Count, w.Stride = max(1, w.Count), 8
		if low[r.Name] == 0 {
			low[r.Name] = r.End
		}
		low[r.Name] -= align(8 * w.Count)
		w.Offset = low[r.Name]
		if w.Offset < r.used {
			return fmt.Errorf("word %s: region %s is full", w.Name, r.Name)
		}
	}
	return nil
}

func (p *Page) place(it *Item, stride int) error {
	r := p.region(it.Region)
	if r == nil {
		return fmt.Errorf("%s: no region %q", it.Name, it.Region)
	}
	if r.used == 0 {
		r.used = r.Offset
	}
	it.Count = max(1, it.Count)
	it.Offset, it.Stride = r.used, stride
	r.used += it.Count * stride
	if r.used > r.End {
		return fmt.Errorf("%s: region %s is full", it.Name, r.Name)
	}
	return nil
}

func (p *Page) region(name string) *Region {
	for i := range p.Regions {
		if p.Regions[i].Name == name {
			return &p.Regions[i]
		}
	}
	return nil
}

func (p *Page) isEnum(name string) bool {
	for _, e := range p.Enums {
		if e.Name == name {
			return true
		}
	}
	return false
}

func (p *Page) fields(it *Item) error {
	for _, line := range it.Lines {
		name, kind, ok := strings.Cut(line, " ")
		if !ok {
			return fmt.Errorf("%s: field %q: want NAME TYPE", it.Name, line)
		}
		f := Field{Name: name, Kind: kind, Word: it.Size}
		if base, length, ok := strings.Cut(kind, "["); ok {
			n, err := strconv.Atoi(strings.TrimSuffix(length, "]"))
			if err != nil || n < 1 {
				return fmt.Errorf("%s: field %q: array length", it.Name, line)
			}
			f.Kind, f.Array = base, n
		}
		words := kinds[f.Kind].words
		if p.isEnum(f.Kind) {
			words = 1
		}
		if words == 0 {
			return fmt.Errorf("%s: field %q: unknown type", it.Name, line)
		}
		it.Size += words * max(1, f.Array)
		it.Fields = append(it.Fields, f)
	}
	return nil
}

func (e *Enum) parse() error {
	for _, line := range e.Lines {
		parts := strings.SplitN(line, " ", 3)
		if len(parts) != 3 {
			return fmt.Errorf("enumeration %s: %q: want NAME NUMBER MEANING", e.Name, line)
		}
		n, err := strconv.Atoi(parts[1])
		if err != nil || n < 0 {
			return fmt.Errorf("enumeration %s: %q: number", e.Name, line)
		}
		e.Values = append(e.Values, Value{parts[0], n, parts[2]})
	}
	return nil
}

func align(size int) int { return (size + 63) &^ 63 }

// camel turns a_name into AName, with the initialisms that Go spells in capitals.
func camel(name string) string {
	var b strings.Builder
	for part := range strings.SplitSeq(name, "_") {
		switch part {
		case "dtype":
			b.WriteString("DType")
		case "ok", "ns", "pid", "bf16":
			b.WriteString(strings.ToUpper(part))
		default:
			b.WriteString(strings.ToUpper(part[:1]) + part[1:])
		}
	}
	return b.String()
}
