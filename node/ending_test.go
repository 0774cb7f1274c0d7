// SPDX-License-Identifier: Apache-2.0

package node

import (
	"go/ast"
	"go/parser"
	"go/token"
	"strconv"
	"testing"

	"phalanx/elastic"
)

// TestEveryHaltSaysWhatToDo: each kind of halt that ends a job has an exit code and words of its own.
func TestEveryHaltSaysWhatToDo(t *testing.T) {
	file, err := parser.ParseFile(token.NewFileSet(), "../elastic/state.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	kinds := 0
	ast.Inspect(file, func(n ast.Node) bool {
		v, ok := n.(*ast.ValueSpec)
		if !ok {
			return true
		}
		if name, ok := v.Type.(*ast.Ident); !ok || name.Name != "HaltKind" {
			return true
		}
		text, err := strconv.Unquote(v.Values[0].(*ast.BasicLit).Value)
		if err != nil {
			t.Fatal(err)
		}
		kind := elastic.HaltKind(text)
		code, hint := haltOutcome(kind, "DIR", 0)
		if kinds++; kind.Ends() && (code == CodeOK || hint == seeExplain) {
			t.Errorf("%s: code %d, %q", kind, code, hint)
		}
		return true
	})
	if kinds < 10 {
		t.Errorf("%d kinds were found", kinds)
	}
	if code, _ := haltOutcome(elastic.CrashLoop, "DIR", CodeUsage); code != CodeUsage {
		t.Errorf("a loop of refused trainers ends with %d", code)
	}
}
