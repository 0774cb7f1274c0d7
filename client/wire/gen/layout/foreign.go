// SPDX-License-Identifier: Apache-2.0

package layout

import (
	"bytes"
	"fmt"
	"strings"
)

// constant is one line of a C or Python file.
type constant struct {
	name  string
	value uint64
}

// unique refuses a name that two things would get in C and Python.
func (p *Page) unique() error {
	seen := map[string]bool{}
	for _, k := range p.constants() {
		if seen[k.name] {
			return fmt.Errorf("two constants are called %s", k.name)
		}
		seen[k.name] = true
	}
	return nil
}

// constants lists everything a client in another language needs: where each thing lies in bytes (_AT, and _PLACES of them
// _STRIDE apart), the size of its payload in words, and the word of each field inside the payload.
func (p *Page) constants() []constant {
	out := []constant{
		{"MAGIC", p.Magic}, {"MAJOR", uint64(p.Major)}, {"MINOR", uint64(p.Minor)}, {"PAGE_BYTES", uint64(p.PageBytes)},
		{"BELL_LINES", uint64(p.Bells)}, {"BELL_BYTES", uint64(p.BellBytes)},
		{"SLAB_HEADER_BYTES", uint64(p.SlabHeaderBytes)}, {"TENSOR_ALIGN", uint64(p.TensorAlign)},
	}
	for i, h := range p.Header {
		out = append(out, constant{"HEADER_" + h.Name, uint64(i)})
	}
	for _, e := range p.Enums {
		for _, v := range e.Values {
			out = append(out, constant{strings.ToUpper(snake(e.Name) + "_" + v.Name), uint64(v.Number)})
		}
	}
	for _, group := range [][]Item{p.Cells, p.Records, p.Words} {
		for _, it := range group {
			out = append(out, constant{it.Name + "_AT", uint64(it.Offset)})
			if it.Count > 1 {
				out = append(out, constant{it.Name + "_PLACES", uint64(it.Count)}, constant{it.Name + "_STRIDE", uint64(it.Stride)})
			}
			if len(it.Fields) == 0 {
				continue
			}
			out = append(out, constant{it.Name + "_WORDS", uint64(it.Size)})
			for _, f := range it.Fields {
				out = append(out, fieldConstants(it.Name, f)...)
			}
		}
	}
	return out
}

func fieldConstants(item string, f Field) []constant {
	name, word := item+"_"+strings.ToUpper(f.Name), uint64(f.Word)
	out := []constant{{name, word}}
	switch {
	case f.Array > 0:
		out = append(out, constant{name + "_LENGTH", uint64(f.Array)})
	case f.Kind == "gen":
		out = []constant{{name + "_EPOCH", word}, {name + "_NUMBER", word + 1}}
	case f.Kind == "digest":
		out = []constant{{name + "0", word}, {name + "1", word + 1}}
	}
	return out
}

func (p *Page) c() []byte {
	b := &bytes.Buffer{}
	fmt.Fprintf(b, "/* SPDX-License-Identifier: Apache-2.0 */\n/* %s */\n\n#ifndef PHALANX_PAGE_H\n#define PHALANX_PAGE_H\n\n", notice)
	fmt.Fprintf(b, "/* _AT and _STRIDE are bytes, _PLACES is how many there are; _WORDS and fields count 8-byte words of a payload. */\n\n")
	for _, k := range p.constants() {
		fmt.Fprintf(b, "#define PHALANX_%s %s\n", k.name, number(k.value, "ull"))
	}
	fmt.Fprintf(b, "\n#endif\n")
	return b.Bytes()
}

func (p *Page) python() []byte {
	b := &bytes.Buffer{}
	fmt.Fprintf(b, "# SPDX-License-Identifier: Apache-2.0\n# %s\n", notice)
	fmt.Fprintf(b, "\"\"\"Layout of the control page: _AT and _STRIDE in bytes, _PLACES of each; _WORDS and fields in 8-byte words.\"\"\"\n\n")
	for _, k := range p.constants() {
		fmt.Fprintf(b, "%s = %s\n", k.name, number(k.value, ""))
	}
	return b.Bytes()
}

func number(v uint64, suffix string) string {
	if v > 1<<31 {
		return fmt.Sprintf("%#x%s", v, suffix)
	}
	return fmt.Sprint(v)
}

// snake turns ServeKind into serve_kind; DType stays dtype.
func snake(name string) string {
	if name == "DType" {
		return "dtype"
	}
	var b strings.Builder
	for i, c := range name {
		if i > 0 && c >= 'A' && c <= 'Z' {
			b.WriteByte('_')
		}
		b.WriteString(strings.ToLower(string(c)))
	}
	return b.String()
}
