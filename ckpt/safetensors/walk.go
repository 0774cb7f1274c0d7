// SPDX-License-Identifier: Apache-2.0

package safetensors

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"unicode/utf8"
)

// maxDepth bounds the nesting of values that are skipped.
const maxDepth = 16

// walker reads JSON token by token, because a decoder into structs lets the last of two equal keys win, replaces what is no
// Unicode and takes 1e3 for a number of bytes. All memory it takes follows the length of the text.
type walker struct {
	dec  *json.Decoder
	what string // how errors call a place, such as "offset"
	base int64  // what is added to the place
}

func newWalker(text []byte, what string, base int64) (*walker, error) {
	w := &walker{dec: json.NewDecoder(bytes.NewReader(text)), what: what, base: base}
	w.dec.UseNumber()
	if len(text) == 0 {
		return nil, w.errorAt(0, "the JSON object is missing")
	}
	if at := notUnicode(text); at >= 0 {
		return nil, w.errorAt(int64(at), "the JSON text is no valid Unicode")
	}
	return w, nil
}

// notUnicode finds the first byte that encoding/json would quietly replace: bad UTF-8, or an escaped surrogate without its
// other half. It returns -1 when there is none.
func notUnicode(text []byte) int {
	for i := 0; i < len(text); {
		switch c := text[i]; {
		case c == '\\' && i+1 < len(text) && text[i+1] == 'u':
			switch first := escaped(text[i:]); {
			case first >= 0xdc00 && first < 0xe000:
				return i
			case first >= 0xd800 && first < 0xdc00:
				if second := escaped(text[i+6:]); second < 0xdc00 || second >= 0xe000 {
					return i
				}
				i += 6
			}
			i += 2
		case c == '\\':
			i += 2
		case c < utf8.RuneSelf:
			i++
		default:
			r, n := utf8.DecodeRune(text[i:])
			if r == utf8.RuneError && n == 1 {
				return i
			}
			i += n
		}
	}
	return -1
}

// escaped is the value of the \uXXXX at the begin of text, -1 when there is none.
func escaped(text []byte) int64 {
	if len(text) < 6 || text[0] != '\\' || text[1] != 'u' {
		return -1
	}
	v, err := strconv.ParseUint(string(text[2:6]), 16, 16)
	if err != nil {
		return -1
	}
	return int64(v)
}

func (w *walker) errorAt(at int64, format string, args ...any) error {
	return fmt.Errorf("%w: %s %d: %s", ErrDamaged, w.what, w.base+at, fmt.Sprintf(format, args...))
}

func (w *walker) fail(format string, args ...any) error {
	return w.errorAt(w.dec.InputOffset(), format, args...)
}

func (w *walker) token() (json.Token, error) {
	t, err := w.dec.Token()
	if err == nil {
		return t, nil
	}
	var syntax *json.SyntaxError
	if errors.As(err, &syntax) {
		return nil, w.errorAt(syntax.Offset, "JSON: %v", err)
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return nil, w.fail("the JSON text ends too early")
	}
	return nil, w.fail("JSON: %v", err)
}

func (w *walker) delim(want json.Delim) error {
	t, err := w.token()
	if err != nil {
		return err
	}
	if t != want {
		return w.fail("want %q, found %.60v", want.String(), t)
	}
	return nil
}

// object reads an object: each reads the value of a key. A key that comes twice is an error.
func (w *walker) object(each func(key string) error) error {
	if err := w.delim('{'); err != nil {
		return err
	}
	return w.members(each)
}

func (w *walker) members(each func(key string) error) error {
	seen := map[string]struct{}{}
	for w.dec.More() {
		t, err := w.token()
		if err != nil {
			return err
		}
		key, ok := t.(string)
		if !ok {
			return w.fail("want a key, found %.60v", t)
		}
		if _, twice := seen[key]; twice {
			return w.fail("the key %.200q comes twice", key)
		}
		seen[key] = struct{}{}
		if err := each(key); err != nil {
			return err
		}
	}
	return w.delim('}')
}

// end checks that nothing but white space follows.
func (w *walker) end() error {
	if t, err := w.dec.Token(); !errors.Is(err, io.EOF) {
		return w.fail("the JSON object is followed by %.60v", t)
	}
	return nil
}

// about names what a value is of. It becomes text in errors only: a header has tens of thousands of values.
type about struct{ what, name, field string }

func (a about) String() string {
	if a.field != "" {
		return fmt.Sprintf("%s %.200q: %s", a.what, a.name, a.field)
	}
	return fmt.Sprintf("%s %.200q", a.what, a.name)
}

func (w *walker) text(of about) (string, error) {
	t, err := w.token()
	if err != nil {
		return "", err
	}
	s, ok := t.(string)
	if !ok {
		return "", w.fail("%s: want a string, found %.60v", of, t)
	}
	return s, nil
}

// strings reads an object of strings, or null.
func (w *walker) strings(into *map[string]string) error {
	t, err := w.token()
	if err != nil || t == nil {
		return err
	}
	if t != json.Delim('{') {
		return w.fail("%s: want an object, found %.60v", metadataKey, t)
	}
	*into = map[string]string{}
	return w.members(func(key string) error {
		value, err := w.text(about{metadataKey, key, ""})
		(*into)[key] = value
		return err
	})
}

// counts reads a list of whole numbers from 0.
func (w *walker) counts(of about) ([]int, error) {
	if err := w.delim('['); err != nil {
		return nil, err
	}
	list := []int{}
	for w.dec.More() {
		t, err := w.token()
		if err != nil {
			return nil, err
		}
		number, ok := t.(json.Number)
		v, err := strconv.ParseUint(string(number), 10, 62)
		if !ok || err != nil {
			return nil, w.fail("%s: want a whole number from 0, found %.60v", of, t)
		}
		list = append(list, int(v))
	}
	return list, w.delim(']')
}

// skip reads a value of any form.
func (w *walker) skip() error {
	for depth := 0; ; {
		t, err := w.token()
		if err != nil {
			return err
		}
		switch t {
		case json.Delim('{'), json.Delim('['):
			if depth++; depth > maxDepth {
				return w.fail("values are nested deeper than %d", maxDepth)
			}
		case json.Delim('}'), json.Delim(']'):
			depth--
		}
		if depth == 0 {
			return nil
		}
	}
}

// tensor reads the description of one tensor. Fields that the format does not have are skipped, as by other readers.
func (w *walker) tensor(name string, dataAt int64) (Tensor, error) {
	t := Tensor{Name: name}
	var offsets []int
	of := about{"tensor", name, ""}
	err := w.object(func(field string) (err error) {
		switch field {
		case "dtype":
			t.DTypeName, err = w.text(about{"tensor", name, "dtype"})
		case "shape":
			t.Shape, err = w.counts(about{"tensor", name, "shape"})
		case "data_offsets":
			offsets, err = w.counts(about{"tensor", name, "data_offsets"})
		default:
			err = w.skip()
		}
		return err
	})
	switch {
	case err != nil:
		return t, err
	case t.DTypeName == "" || t.Shape == nil || offsets == nil:
		return t, w.fail("%s: dtype, shape or data_offsets is missing", of)
	case len(offsets) != 2 || offsets[0] > offsets[1]:
		return t, w.fail("%s: data_offsets are %d, want [from, to]", of, offsets[:min(len(offsets), 4)])
	}
	size := int64(0)
	for _, d := range dtypes {
		if d.name == t.DTypeName {
			t.DType, t.DTypeName, size = d.dtype, d.name, d.bits // one string for all tensors
		}
	}
	if size == 0 {
		return t, w.fail("%s: unknown dtype %.40q", of, t.DTypeName)
	}
	want, ok := length(size, t.Shape)
	if !ok {
		return t, w.fail("%s: %s of shape %d is no whole number of bytes, or more than can be counted", of, t.DTypeName, t.Shape[:min(len(t.Shape), 8)])
	}
	t.At, t.Length = dataAt+int64(offsets[0]), int64(offsets[1]-offsets[0])
	if t.Length != want {
		return t, w.fail("%s: %s of shape %d has %d bytes, data_offsets give %d", of, t.DTypeName, t.Shape[:min(len(t.Shape), 8)], want, t.Length)
	}
	return t, nil
}
