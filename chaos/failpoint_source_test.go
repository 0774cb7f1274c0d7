// SPDX-License-Identifier: Apache-2.0

package chaos_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// failPoints are the names of all fail points in the source, as often as they stand there.
func failPoints(t *testing.T) []string {
	t.Helper()
	var out []string
	files := token.NewFileSet()
	err := filepath.WalkDir("..", func(path string, e fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case e.IsDir() && (strings.HasPrefix(e.Name(), ".") && e.Name() != ".." || e.Name() == "failpoint" || e.Name() == "testdata"):
			return filepath.SkipDir
		case e.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go"):
			return nil
		}
		f, err := parser.ParseFile(files, path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		ast.Inspect(f, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			if s, ok := call.Fun.(*ast.SelectorExpr); !ok || s.Sel.Name != "Here" || !isName(s.X, "failpoint") {
				return true
			}
			text, ok := call.Args[0].(*ast.BasicLit)
			if !ok || text.Kind != token.STRING {
				t.Errorf("%s: the name of a fail point is a literal, so that a test can look for it", files.Position(call.Pos()))
				return true
			}
			name, err := strconv.Unquote(text.Value)
			if err != nil {
				t.Errorf("%s: %v", files.Position(call.Pos()), err)
			}
			out = append(out, name)
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func isName(x ast.Expr, name string) bool {
	id, ok := x.(*ast.Ident)
	return ok && id.Name == name
}
