// SPDX-License-Identifier: Apache-2.0

package phalanx_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// source is one Go file of the module, whatever its build tags.
type source struct {
	name   string // relative to the root, with slashes
	folder string // its directory, "." for the root
	test   bool
	text   string
	syntax *ast.File
}

var readSources = sync.OnceValues(func() ([]source, error) {
	var files []source
	err := filepath.WalkDir(".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name = filepath.ToSlash(name)
		if entry.IsDir() {
			base := path.Base(name)
			// tools is a module of its own; testdata may hold anything.
			if name != "." && (strings.HasPrefix(base, ".") || strings.HasPrefix(base, "_") || base == "testdata" || name == "tools" || name == "bin") {
				return fs.SkipDir
			}
			return nil
		}
		if path.Ext(name) != ".go" {
			return nil
		}
		text, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		syntax, err := parser.ParseFile(token.NewFileSet(), name, text, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		files = append(files, source{name, path.Dir(name), strings.HasSuffix(name, "_test.go"), string(text), syntax})
		return nil
	})
	return files, err
})

// sourceFiles returns the Go files of the module. They are read once and must not be changed.
func sourceFiles(t *testing.T) []source {
	t.Helper()
	files, err := readSources()
	if err != nil {
		t.Fatal(err)
	}
	if len(files) == 0 {
		t.Fatal("no Go files found")
	}
	return files
}

func parse(t *testing.T, name, text string) *ast.File {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), name, text, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	return file
}

func importPath(spec *ast.ImportSpec) string {
	p, err := strconv.Unquote(spec.Path.Value)
	if err != nil {
		return spec.Path.Value // the parser has accepted it, so this does not happen
	}
	return p
}

// TestLicenceHeader wants the licence named in the first lines of every Go file, generated ones too.
func TestLicenceHeader(t *testing.T) {
	for _, f := range sourceFiles(t) {
		head, _, _ := strings.Cut(f.text, "\npackage ")
		if !slices.Contains(strings.Split(head, "\n"), "// SPDX-License-Identifier: Apache-2.0") {
			t.Errorf("%s: add the line // SPDX-License-Identifier: Apache-2.0 above the package clause", f.name)
		}
	}
}

// TestPackageComment wants each package described once, in the file where a reader looks for it.
func TestPackageComment(t *testing.T) {
	described := map[string][]string{} // folder: files with a package comment
	for _, f := range sourceFiles(t) {
		if f.test {
			continue
		}
		if _, seen := described[f.folder]; !seen {
			described[f.folder] = nil
		}
		doc := f.syntax.Doc.Text()
		if doc == "" {
			continue
		}
		described[f.folder] = append(described[f.folder], f.name)
		start := "Package " + f.syntax.Name.Name + " "
		if f.syntax.Name.Name == "main" {
			start = "Command " + path.Base(f.folder) + " "
		}
		if !strings.HasPrefix(doc, start) {
			t.Errorf("%s: the package comment starts %.40q; start it with %q", f.name, doc, start)
		}
	}
	for _, folder := range slices.Sorted(maps.Keys(described)) {
		switch files := described[folder]; {
		case len(files) == 0:
			t.Errorf("%s: no file has a package comment; write doc.go", folder)
		case len(files) > 1:
			t.Errorf("%s: described in %s; keep one", folder, strings.Join(files, " and "))
		}
	}
}

// TestChangelogFragments wants every fragment to say what kind of change it is, in its name.
func TestChangelogFragments(t *testing.T) {
	const folder = "changelog/unreleased"
	entries, err := os.ReadDir(folder)
	if err != nil {
		t.Fatal(err)
	}
	form := regexp.MustCompile(`^(added|changed|fixed|removed|security)(-[a-z0-9]+)+\.md$`)
	for _, entry := range entries {
		if entry.Name() != "README.md" && !form.MatchString(entry.Name()) {
			t.Errorf("%s/%s: want KIND-WORDS.md; %s/README.md names the kinds", folder, entry.Name(), folder)
		}
	}
}

// TestNotice wants every module of go.mod named in NOTICE.
func TestNotice(t *testing.T) {
	mod, err := os.ReadFile("go.mod")
	if err != nil {
		t.Fatal(err)
	}
	notice, err := os.ReadFile("NOTICE")
	if err != nil {
		t.Fatal(err)
	}
	named := strings.Fields(string(notice))
	for _, m := range regexp.MustCompile(`(?m)^\t(\S+) v\S+`).FindAllStringSubmatch(string(mod), -1) {
		if !slices.Contains(named, m[1]) {
			t.Errorf("NOTICE: add %s under its licence", m[1])
		}
	}
}

// TestEvidenceKindsAreNamed keeps the table of docs/naming.md and the constants of evidence.go the same.
func TestEvidenceKindsAreNamed(t *testing.T) {
	text, err := os.ReadFile("docs/naming.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, found := strings.Cut(string(text), "### Evidence kinds")
	if !found {
		t.Fatal("docs/naming.md has no section on evidence kinds")
	}
	table, _, _ = strings.Cut(table, "\n## ")
	named := map[string]bool{}
	for _, m := range regexp.MustCompile("(?m)^\\| `([a-z_]+)` \\|").FindAllStringSubmatch(table, -1) {
		named[m[1]] = true
	}
	coded := map[string]bool{}
	for _, f := range sourceFiles(t) {
		if f.name != "evidence.go" {
			continue
		}
		for _, m := range regexp.MustCompile(`EvidenceKind = "([a-z_]+)"`).FindAllStringSubmatch(f.text, -1) {
			coded[m[1]] = true
		}
	}
	if !maps.Equal(named, coded) {
		t.Errorf("docs/naming.md names %v, evidence.go %v", slices.Sorted(maps.Keys(named)), slices.Sorted(maps.Keys(coded)))
	}
}
