// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"text/template"
)

//go:embed core.md.tmpl
var pageCore string

// write puts NAME.md and NAME.json into a folder.
func write(folder, name, page string, values any) error {
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	raw, err := lines(values)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(folder, name+".json"), raw, 0o644); err != nil {
		return err
	}
	t, err := template.New(name).Funcs(template.FuncMap{
		"f0":   func(v float64) string { return fmt.Sprintf("%.0f", v) },
		"f1":   func(v float64) string { return fmt.Sprintf("%.1f", v) },
		"f2":   func(v float64) string { return fmt.Sprintf("%.2f", v) },
		"f3":   func(v float64) string { return fmt.Sprintf("%.3f", v) },
		"size": size,
		"rate": func(bytes int, ms float64) string { return fmt.Sprintf("%.0f MB/s", float64(bytes)/ms/1e3) },
	}).Parse(page)
	if err != nil {
		return err
	}
	var b bytes.Buffer
	if err := t.Execute(&b, values); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(folder, name+".md"), b.Bytes(), 0o644)
}

// renderAgain writes core.md from core.json: with other words, or with parts that were measured one by one on the same machine.
func renderAgain(folder string) error {
	name := filepath.Join(folder, "core.json")
	raw, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	r := &results{}
	if err := json.Unmarshal(raw, r); err != nil {
		return fmt.Errorf("read %s: %w", name, err)
	}
	r.Aims, r.Surprises = aims(r), surprises(r)
	return write(folder, "core", pageCore, r)
}

// size is a number of bytes for a page.
func size(bytes int) string {
	if bytes >= 1<<20 {
		return fmt.Sprintf("%d MiB", bytes>>20)
	}
	return fmt.Sprintf("%d KiB", bytes>>10)
}

// lines is JSON with one field of the whole, and one element of each list, on a line: thousands of lines would hide what
// changed between two runs, a single one too.
func lines(values any) ([]byte, error) {
	raw, err := json.Marshal(values)
	if err != nil {
		return nil, err
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(raw, &fields); err != nil {
		return nil, err
	}
	var b bytes.Buffer
	b.WriteString("{")
	for i, name := range slices.Sorted(maps.Keys(fields)) {
		if i > 0 {
			b.WriteString(",")
		}
		fmt.Fprintf(&b, "\n%q: ", name)
		var list []json.RawMessage
		if json.Unmarshal(fields[name], &list) != nil || len(list) == 0 {
			b.Write(fields[name])
			continue
		}
		b.WriteString("[")
		for i, v := range list {
			if i > 0 {
				b.WriteString(",")
			}
			b.WriteString("\n ")
			b.Write(v)
		}
		b.WriteString("\n]")
	}
	b.WriteString("\n}\n")
	return b.Bytes(), nil
}
