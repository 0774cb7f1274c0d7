// SPDX-License-Identifier: Apache-2.0

package planted

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestEveryBugHasAPlace: each bug is asked for somewhere in the sources, or its test would be about nothing.
func TestEveryBugHasAPlace(t *testing.T) {
	names := map[string]string{} // by the constant's name
	self, err := parser.ParseFile(token.NewFileSet(), "doc.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	ast.Inspect(self, func(n ast.Node) bool {
		if v, ok := n.(*ast.ValueSpec); ok && len(v.Values) == 1 {
			if text, ok := v.Values[0].(*ast.BasicLit); ok {
				names[v.Names[0].Name] = strings.Trim(text.Value, `"`)
			}
		}
		return true
	})
	if len(names) != len(All()) {
		t.Fatalf("%d constants, All lists %d bugs", len(names), len(All()))
	}
	placed := map[Bug][]string{}
	root := filepath.Join("..", "..")
	err = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && path != root && (strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata"):
			return fs.SkipDir
		case d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go"):
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil || !strings.Contains(string(text), "planted.On(") {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, text, 0)
		if err != nil {
			return err
		}
		ast.Inspect(file, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok || len(call.Args) != 1 {
				return true
			}
			on, isOn := call.Fun.(*ast.SelectorExpr)
			bug, isBug := call.Args[0].(*ast.SelectorExpr)
			if isOn && isBug && on.Sel.Name == "On" {
				b := Bug(names[bug.Sel.Name])
				placed[b] = append(placed[b], path)
			}
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range All() {
		if len(placed[b]) == 0 {
			t.Errorf("%s has no place", b)
		}
	}
}
