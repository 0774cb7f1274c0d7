// SPDX-License-Identifier: Apache-2.0

package phalanx

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// decodes are the functions by which bytes become values, by package.
var decodes = map[string][]string{
	"encoding/json":                   {"Unmarshal", "NewDecoder"},
	"encoding/hex":                    {"DecodeString", "Decode"},
	"encoding/gob":                    {"NewDecoder"},
	"crypto/x509":                     {"ParseCertificate"},
	"encoding/binary":                 {"Read", "Uvarint", "Varint", "Decode"},
	"github.com/pelletier/go-toml/v2": {"Unmarshal", "NewDecoder"},
}

var (
	fuzzRow   = regexp.MustCompile("(?m)^\\| `(Fuzz\\w+)` \\| `([^`]+)` \\|")
	decodeRow = regexp.MustCompile("(?m)^\\| `(\\w+)` \\| `([^`]+)` \\| (?:`(Fuzz\\w+)`|none: \\S.*) \\|$")
)

// TestFuzzingIsListed compares docs/fuzzing.md with the code in both directions: every target, and every function outside of
// tests and scripts that decodes, with a target that exists or a reason.
func TestFuzzingIsListed(t *testing.T) {
	text, err := os.ReadFile("docs/fuzzing.md")
	if err != nil {
		t.Fatal(err)
	}
	targets, decoders := inCode(t)
	listed := map[string]bool{}
	named := map[string]bool{}
	for _, row := range fuzzRow.FindAllStringSubmatch(string(text), -1) {
		listed[row[2]+" "+row[1]], named[row[1]] = true, true
	}
	compare(t, "target", listed, targets)
	listed = map[string]bool{}
	for _, row := range decodeRow.FindAllStringSubmatch(string(text), -1) {
		listed[row[2]+" "+row[1]] = true
		if row[3] != "" && !named[row[3]] {
			t.Errorf("docs/fuzzing.md: %s of %s goes through %s, which is no target", row[1], row[2], row[3])
		}
	}
	compare(t, "decoder", listed, decoders)
}

func compare(t *testing.T, what string, listed, found map[string]bool) {
	t.Helper()
	if len(found) < 20 {
		t.Errorf("only %d %ss were found in the code", len(found), what)
	}
	for name := range found {
		if !listed[name] {
			t.Errorf("docs/fuzzing.md does not list the %s %s", what, name)
		}
	}
	for name := range listed {
		if !found[name] {
			t.Errorf("docs/fuzzing.md lists the %s %s, which is not in the code", what, name)
		}
	}
}

// inCode finds the fuzz targets and the functions that decode, as "folder name".
func inCode(t *testing.T) (targets, decoders map[string]bool) {
	t.Helper()
	targets, decoders = map[string]bool{}, map[string]bool{}
	err := filepath.WalkDir(".", func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if e.IsDir() && (path == "scripts" || path == "tools" || path == "client/wire/gen" || path == "chaos" || strings.HasPrefix(e.Name(), ".") && path != "." || e.Name() == "testdata") {
			return filepath.SkipDir // drives the programs, is their generator, or is no code
		}
		if e.IsDir() || !strings.HasSuffix(path, ".go") {
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		folder, test := filepath.ToSlash(filepath.Dir(path)), strings.HasSuffix(path, "_test.go")
		for _, d := range file.Decls {
			f, ok := d.(*ast.FuncDecl)
			switch {
			case !ok || f.Body == nil:
			case test && strings.HasPrefix(f.Name.Name, "Fuzz"):
				targets[folder+" "+f.Name.Name] = true
			case !test && decodesBytes(file, f):
				decoders[folder+" "+f.Name.Name] = true
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return targets, decoders
}

// decodesBytes reports whether a function calls one that decodes, or takes numbers out of bytes.
func decodesBytes(file *ast.File, f *ast.FuncDecl) (found bool) {
	names := map[string]string{} // of the imports of this file
	for _, i := range file.Imports {
		path := strings.Trim(i.Path.Value, `"`)
		name := path[strings.LastIndexByte(path, '/')+1:]
		if strings.Contains(path, "go-toml") {
			name = "toml"
		}
		if i.Name != nil {
			name = i.Name.Name
		}
		names[name] = path
	}
	ast.Inspect(f.Body, func(n ast.Node) bool {
		s, ok := n.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		if x, ok := s.X.(*ast.Ident); ok && slices.Contains(decodes[names[x.Name]], s.Sel.Name) {
			found = true
		}
		// binary.LittleEndian.Uint64 and the like, or a variable that holds the order.
		if names["binary"] == "encoding/binary" && slices.Contains([]string{"Uint16", "Uint32", "Uint64"}, s.Sel.Name) {
			found = true
		}
		return true
	})
	return found
}
