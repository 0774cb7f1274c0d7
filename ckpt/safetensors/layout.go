// SPDX-License-Identifier: Apache-2.0

package safetensors

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"unicode/utf8"

	"phalanx"
)

// Layout places tensors in a new file, see "Writing" in the package comment; the order of infos has no meaning. Of a
// TensorInfo it takes name, dtype and shape: of a box of a larger tensor the box's own. The metadata must not have names of
// tensors as keys, but for aliases (see Tied), and may be nil. It fails for names that are empty, not Unicode, used twice or
// "__metadata__", with ErrUnsupported for a dtype that the format does not have, and when the header would be too long.
func Layout(infos []phalanx.TensorInfo, metadata map[string]string) (*File, error) {
	f := &File{Metadata: metadata}
	seen := make(map[string]struct{}, len(infos))
	for _, info := range infos {
		t, err := place(info)
		if err != nil {
			return nil, err
		}
		if _, twice := seen[t.Name]; twice {
			return nil, fmt.Errorf("tensor %.200q is there twice; a safetensors file holds one of a name", t.Name)
		}
		seen[t.Name] = struct{}{}
		f.Tensors = append(f.Tensors, t)
	}
	for key, value := range metadata {
		if !utf8.ValidString(key) || !utf8.ValidString(value) {
			return nil, fmt.Errorf("metadata %.200q: not valid UTF-8", key)
		}
	}
	slices.SortFunc(f.Tensors, func(a, b Tensor) int { return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(a.Name, b.Name)) })
	var at int64
	for i := range f.Tensors {
		f.Tensors[i].At = at
		at += f.Tensors[i].Length
		if at < 0 || at >= 1<<62 {
			return nil, fmt.Errorf("the tensors have more bytes than a file can have")
		}
	}
	// The offsets in the header count from the begin of the buffer, so its length does not depend on itself.
	f.DataAt = (lengthBytes + int64(len(f.header())) + align - 1) / align * align
	if n := f.DataAt - lengthBytes; n > MaxHeader {
		return nil, fmt.Errorf("the header would have %d bytes, the format allows %d; write several files", n, MaxHeader)
	}
	for i := range f.Tensors {
		f.Tensors[i].At += f.DataAt
	}
	f.Size = f.DataAt + at
	return f, nil
}

func place(info phalanx.TensorInfo) (Tensor, error) {
	t := Tensor{Name: info.Name, DType: info.DType, Shape: append([]int{}, info.Shape...)}
	var err error
	if t.DTypeName, err = DTypeName(info.DType); err != nil {
		return t, fmt.Errorf("tensor %.200q: %w", info.Name, err)
	}
	if t.Name == "" || t.Name == metadataKey || !utf8.ValidString(t.Name) {
		return t, fmt.Errorf("tensor %.200q: a name in a safetensors file is valid UTF-8, not empty and not %s; rename it", t.Name, metadataKey)
	}
	if slices.ContainsFunc(t.Shape, func(d int) bool { return d < 0 }) {
		return t, fmt.Errorf("tensor %.200q: shape %d has a negative dimension", t.Name, t.Shape)
	}
	var ok bool
	if t.Length, ok = length(8*int64(phalanx.DTypeSize(t.DType)), t.Shape); !ok {
		return t, fmt.Errorf("tensor %.200q: shape %d has more elements than can be counted", t.Name, t.Shape)
	}
	return t, nil
}

// rank orders tensors in a file: multiples of 64 bytes, then 8, 4, 2 and 1 byte for each element.
func rank(t Tensor) int {
	if t.Length%align == 0 {
		return 0
	}
	return 1 + align - phalanx.DTypeSize(t.DType)
}

// header is the JSON text without the padding.
func (f *File) header() []byte {
	var b bytes.Buffer
	b.WriteByte('{')
	if len(f.Metadata) > 0 {
		b.WriteString(`"__metadata__":{`)
		for i, key := range slices.Sorted(maps.Keys(f.Metadata)) {
			if i > 0 {
				b.WriteByte(',')
			}
			quote(&b, key)
			b.WriteByte(':')
			quote(&b, f.Metadata[key])
		}
		b.WriteByte('}')
	}
	for i, t := range f.Tensors {
		if i > 0 || len(f.Metadata) > 0 {
			b.WriteByte(',')
		}
		quote(&b, t.Name)
		fmt.Fprintf(&b, `:{"dtype":%q,"shape":[`, t.DTypeName)
		for d, n := range t.Shape {
			if d > 0 {
				b.WriteByte(',')
			}
			fmt.Fprintf(&b, "%d", n)
		}
		fmt.Fprintf(&b, `],"data_offsets":[%d,%d]}`, t.At-f.DataAt, t.At-f.DataAt+t.Length)
	}
	b.WriteByte('}')
	return b.Bytes()
}

// quote writes a JSON string, without escapes that only HTML needs.
func quote(b *bytes.Buffer, s string) {
	e := json.NewEncoder(b)
	e.SetEscapeHTML(false)
	_ = e.Encode(s)         // a string that is valid UTF-8 into memory cannot fail
	b.Truncate(b.Len() - 1) // the newline of Encode
}

// Head is what a file of Layout begins with: DataAt bytes, before the first tensor.
func (f *File) Head() []byte {
	head := binary.LittleEndian.AppendUint64(nil, uint64(f.DataAt-lengthBytes))
	head = append(head, f.header()...)
	return append(head, bytes.Repeat([]byte{' '}, int(f.DataAt)-len(head))...)
}

// WriteTo writes a file of Layout to w, from its first byte to its last. For each tensor, in the order of Tensors, content
// writes exactly its Length bytes; more or fewer is an error that names the tensor.
func (f *File) WriteTo(w io.Writer, content func(t Tensor, w io.Writer) error) error {
	if _, err := w.Write(f.Head()); err != nil {
		return fmt.Errorf("write header: %w", err)
	}
	for _, t := range f.Tensors {
		exact := &exactWriter{w: w, left: t.Length}
		if err := content(t, exact); err != nil {
			return fmt.Errorf("tensor %.200q: %w", t.Name, err)
		}
		if exact.left != 0 {
			return fmt.Errorf("tensor %.200q: %d of %d bytes are missing", t.Name, exact.left, t.Length)
		}
	}
	return nil
}

// exactWriter refuses bytes beyond a tensor's end: they would become the next tensor's.
type exactWriter struct {
	w    io.Writer
	left int64
}

func (e *exactWriter) Write(p []byte) (int, error) {
	if int64(len(p)) > e.left {
		return 0, fmt.Errorf("%d bytes more than the tensor has", int64(len(p))-e.left)
	}
	n, err := e.w.Write(p)
	e.left -= int64(n)
	return n, err
}
