// SPDX-License-Identifier: Apache-2.0

package phalanx_test

import (
	"fmt"
	"go/ast"
	"path"
	"slices"
	"strings"
	"testing"
)

// layer says which packages of the module a folder (with everything below it) may import, besides itself.
type layer struct {
	folder string
	may    []string
	why    string
}

// layers is the import graph. Of two folders that hold a package the longer one counts.
var layers = []layer{
	{".", nil, "the shared words are values: everything imports them, so they import nothing"},
	{"internal/planted", nil, "names the bugs that tests switch on; every layer may hold the place of one"},
	{"internal/nearest", nil, "finds a name that was meant; what reads flags, keys and parameters tells it"},
	{"internal/failpoint", nil, "places at which tests kill a process; every layer that writes what must survive has some"},
	{"kernels", []string{"."}, "adds and digests know of memory and of nothing else, so that a GPU version can take their place"},
	{"elastic", []string{"."}, "the three machines decide; what they could import would let them do"},
	{"consensus", []string{"."}, "agreement carries commands as bytes; if it knew their meaning it could not be replaced"},
	{"membership", []string{"."}, "gossip is a source of hints; only node turns hints into evidence"},
	{"collective", []string{".", "kernels"}, "reduces what it is told to, in the world it is given; node decides which world"},
	{"ckpt", []string{".", "kernels", "internal/nearest", "ckpt/archive", "ckpt/pickle", "ckpt/dcp", "ckpt/safetensors", "ckpt/torchfile", "ckpt/elem", "ckpt/npy"}, "stored bytes are read without a running job"},
	{"ckpt/pickle", []string{"."}, "bytes of strangers become inert values; it knows of no file and no store"},
	{"ckpt/archive", nil, "where the bytes of members of a zip archive are, whatever they mean"},
	{"ckpt/dcp", []string{".", "ckpt/archive", "ckpt/pickle"}, "PyTorch's format as bytes; stores, manifests and checkpoints are above it"},
	{"ckpt/safetensors", []string{"."}, "a format as bytes too; who reads and writes files is above it"},
	{"ckpt/torchfile", []string{".", "ckpt/archive", "ckpt/pickle"}, "likewise; it reads only, and executes nothing"},
	{"ckpt/elem", []string{"."}, "what the bytes of elements mean, wherever they come from"},
	{"ckpt/npy", []string{".", "ckpt/elem"}, "a format as bytes, which lacks some of the element types"},
	{"client/wire", []string{"."}, "the layout of the page is shared by daemon and client, so it belongs to neither"},
	{"client", []string{".", "kernels", "client/wire"}, "runs inside the trainer, where no daemon code belongs"},
	{"node", []string{".", "kernels", "elastic", "consensus", "membership", "collective", "ckpt", "client/wire"},
		"the only place where the five below meet"},
	{"chaos", []string{".", "kernels", "elastic", "consensus", "membership", "collective", "ckpt", "client", "client/wire", "node"},
		"breaks everything below it"},
	{"cmd", []string{".", "kernels", "elastic", "consensus", "membership", "collective", "ckpt", "ckpt/elem", "ckpt/npy", "ckpt/pickle", "client", "client/wire", "node", "chaos", "internal/nearest"},
		"reads flags and environment and puts the parts together"},
	{"scripts/internal", nil, "starts, asks and kills jobs for the commands beside it, by the surfaces that docs/cli.md promises"},
	{"scripts", []string{"scripts/internal"}, "drives the built programs from outside, by the surfaces that docs/cli.md promises"},
	{"scripts/bench", []string{".", "kernels", "client", "ckpt", "scripts/internal"},
		"drives from outside too; its trainers, which do nothing but take times, are trainers like any other and use the client, and the checkpoint layer is timed alone too"},
}

// outsider says which folders may import a module from outside. Of two entries that hold a package the longer one counts.
type outsider struct {
	module  string
	folders []string // nil: test files only, anywhere
	why     string
}

var outsiders = []outsider{
	{"github.com/hashicorp/raft", []string{"consensus"}, "the rest of the code proposes and watches, and does not know by which protocol"},
	{"github.com/hashicorp/raft-boltdb", []string{"consensus"}, "the log's store is consensus' own business, so that it can be replaced"},
	{"go.etcd.io/bbolt", []string{"consensus"}, "the file below raft-boltdb"},
	{"github.com/hashicorp/go-hclog", []string{"consensus"}, "what raft logs is turned into slog where raft is"},
	{"github.com/hashicorp/go-metrics", []string{"consensus", "membership"}, "what raft and memberlist measure is handed on where they are"},
	{"github.com/hashicorp/memberlist", []string{"membership"}, "gossip is a hint from one place"},
	{"github.com/NVIDIA/go-nvml", []string{"membership/gpu"}, "it needs cgo, and any call after a failed Init kills the process"},
	{"github.com/minio/minio-go", []string{"ckpt/s3", "scripts/bench"}, "one store among several behind ckpt.Store"},
	{"golang.org/x/net", []string{"ckpt/s3"}, "finds the proxy of the object store, which obeys them where peers do not"},
	{"github.com/minio/crc64nvme", []string{"ckpt"}, "checksum of stored objects"},
	{"github.com/klauspost/compress", []string{"ckpt"}, "codec of stored chunks"},
	{"github.com/zeebo/xxh3", []string{"ckpt"}, "names of stored chunks"},
	{"github.com/ebitengine/purego", []string{"collective/nccl", "kernels/cuda", "membership/gpu"}, "libraries of the GPU are opened where they are used"},
	{"github.com/prometheus", []string{"node"}, "one registry, served by the daemon"},
	{"go.opentelemetry.io", []string{"node"}, "traces start in the loop"},
	{"github.com/spf13/cobra", []string{"cmd"}, "flags are read in cmd only"},
	{"github.com/spf13/pflag", []string{"cmd"}, "flags are read in cmd only"},
	{"github.com/knadh/koanf", []string{"cmd"}, "configuration is read in cmd only"},
	{"github.com/pelletier/go-toml", []string{"cmd", "client/wire"}, "configuration is read in cmd only; the page's constants are generated from a file"},
	{"golang.org/x/sys", []string{"kernels", "consensus", "membership", "collective", "ckpt", "client", "node", "chaos", "cmd"},
		"the root and the machines ask the kernel for nothing"},
	{"golang.org/x/sync", []string{"consensus", "membership", "collective", "ckpt", "client", "node", "chaos", "cmd", "scripts/bench"},
		"the root and the machines start no goroutines"},
	{"pgregory.net/rapid", nil, "a tool of tests"},
	{"go.uber.org/goleak", nil, "a tool of tests"},
	{"github.com/rogpeppe/go-internal", nil, "a tool of tests"},
	{"github.com/cockroachdb/datadriven", nil, "a tool of tests"},
	{"github.com/anishathalye/porcupine", nil, "a tool of tests"},
}

// impure lists what code that only decides must not touch: State, Planner and Machine run on recorded times and give the same
// answer on every daemon and in every replay. An empty list forbids the whole import.
var impure = map[string][]string{
	"time": {"Now", "Since", "Until", "After", "AfterFunc", "Tick", "NewTimer", "NewTicker", "Sleep"},
	"os":   {}, "io/fs": {}, "syscall": {}, "unsafe": {}, "runtime": {}, "reflect": {},
	"net": {}, "context": {}, "sync": {}, "log": {}, "math/rand": {}, "crypto/rand": {},
}

// pureFolders are the packages, without those below them, that impure is about.
var pureFolders = []string{".", "elastic"}

// TestImports holds the import graph: each package of the module, and each module from outside, in its place.
func TestImports(t *testing.T) {
	for _, f := range sourceFiles(t) {
		for _, spec := range f.syntax.Imports {
			if why := refuse(f.folder, importPath(spec), f.test); why != "" {
				t.Errorf("%s: %s", f.name, why)
			}
		}
	}
}

// TestDecidingCodeIsPure keeps clock, chance, goroutines and the operating system out of the code that decides.
func TestDecidingCodeIsPure(t *testing.T) {
	for _, f := range sourceFiles(t) {
		if f.test || !slices.Contains(pureFolders, f.folder) {
			continue
		}
		for _, what := range impurities(f.syntax) {
			t.Errorf("%s: %s: only the loop in node may; turn it into an event, a fact or a field of the command", f.name, what)
		}
	}
}

// TestImportRules shows that the rules can refuse.
func TestImportRules(t *testing.T) {
	for _, c := range []struct {
		folder, imports string
		test, refused   bool
	}{
		{"elastic", "phalanx", false, false},
		{"elastic", "sort", false, false},
		{"elastic", "phalanx/consensus", false, true},
		{"elastic", "phalanx/kernels", false, true},
		{"elastic", "golang.org/x/sync/errgroup", false, true},
		{"elastic", "pgregory.net/rapid", true, false},
		{"elastic", "pgregory.net/rapid", false, true},
		{"elastic/explore", "phalanx/elastic", false, false},
		{"consensus", "github.com/hashicorp/raft", false, false},
		{"node", "github.com/hashicorp/raft", false, true},
		{"node", "github.com/hashicorp/raft", true, true},
		{"node", "phalanx/consensus", false, false},
		{"node", "phalanx/client/wire", false, false},
		{"node", "phalanx/client", false, true},
		{"client/wire", "phalanx/client", false, true},
		{"ckpt/fs", "github.com/minio/minio-go/v7", false, true},
		{"ckpt/s3", "github.com/minio/minio-go/v7", false, false},
		{"node", "phalanx/chaos", true, true},
		{"chaos/sim", "phalanx/node", false, false},
		{"cmd/phalanx", "phalanx/chaos", false, false},
		{"cmd/phalanx", "example.org/unknown", false, true},
		{"extra", "fmt", false, true},
	} {
		if why := refuse(c.folder, c.imports, c.test); (why != "") != c.refused {
			t.Errorf("%s imports %s (test %v): refused %q, want refused %v", c.folder, c.imports, c.test, why, c.refused)
		}
	}
}

// TestImpuritiesAreFound shows that the search for impure code finds it.
func TestImpuritiesAreFound(t *testing.T) {
	for source, want := range map[string]int{
		`package p; import "time"; func f(d time.Duration) int64 { return int64(d) }`:    0,
		`package p; import "time"; func f() int64 { return time.Now().UnixNano() }`:      1,
		`package p; import clock "time"; func f() int64 { return clock.Now().Unix() }`:   1,
		`package p; import "os"; var x = os.Args`:                                        1,
		`package p; import "math/rand/v2"; func f() int { return rand.Int() }`:           1,
		`package p; import "net/http"; var x = http.StatusOK`:                            1,
		`package p; func f() { go f() }`:                                                 1,
		`package p; func f(c chan int) { select { case <-c: } }`:                         3,
		`package p; type t struct{ time struct{ Now int } }; func f(x t) { _ = x.time }`: 0,
	} {
		if got := impurities(parse(t, "p.go", source)); len(got) != want {
			t.Errorf("%s: found %q, want %d", source, got, want)
		}
	}
}

// refuse says why a file in folder may not import an import path, "" when it may.
func refuse(folder, imports string, test bool) string {
	own := slices.IndexFunc(layers, func(l layer) bool { return l.folder == layerOf(folder) })
	if own < 0 {
		return fmt.Sprintf("folder %s has no layer; add it to layers in imports_test.go with what it may import and why", folder)
	}
	if target, inside := moduleFolder(imports); inside {
		if to := layerOf(target); to != layers[own].folder && to != "internal/planted" && to != "internal/failpoint" && !slices.Contains(layers[own].may, to) {
			return fmt.Sprintf("%s imports %s: %s", folder, target, layers[own].why)
		}
		return ""
	}
	if first, _, _ := strings.Cut(imports, "/"); !strings.Contains(first, ".") {
		return "" // the standard library
	}
	var found *outsider
	for i, o := range outsiders {
		if within(imports, o.module) && (found == nil || len(o.module) > len(found.module)) {
			found = &outsiders[i]
		}
	}
	switch {
	case found == nil:
		return fmt.Sprintf("%s imports %s, which has no place; add it to outsiders in imports_test.go, and to NOTICE", folder, imports)
	case found.folders == nil && test:
		return ""
	case slices.ContainsFunc(found.folders, func(f string) bool { return within(folder, f) }):
		return ""
	}
	return fmt.Sprintf("%s imports %s: %s", folder, imports, found.why)
}

// layerOf returns the folder of the layer that holds a folder, "" when none does.
func layerOf(folder string) string {
	if folder == "." {
		return "."
	}
	best := ""
	for _, l := range layers {
		if within(folder, l.folder) && len(l.folder) > len(best) {
			best = l.folder
		}
	}
	return best
}

// moduleFolder turns an import path of this module into a folder.
func moduleFolder(imports string) (string, bool) {
	if imports == "phalanx" {
		return ".", true
	}
	return strings.CutPrefix(imports, "phalanx/")
}

func within(p, parent string) bool { return p == parent || strings.HasPrefix(p, parent+"/") }

// impurities lists what makes a file impure.
func impurities(file *ast.File) []string {
	var found []string
	members := map[string][]string{} // by the name that the file uses for the package
	for _, spec := range file.Imports {
		imports := importPath(spec)
		for forbidden, some := range impure {
			if !within(imports, forbidden) {
				continue
			}
			if len(some) == 0 {
				found = append(found, "imports "+imports)
				continue
			}
			name := path.Base(imports)
			if spec.Name != nil {
				name = spec.Name.Name
			}
			members[name] = some
		}
	}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.GoStmt:
			found = append(found, "starts a goroutine")
		case *ast.SelectStmt:
			found = append(found, "waits in a select")
		case *ast.ChanType:
			found = append(found, "uses a channel")
		case *ast.UnaryExpr:
			if n.Op.String() == "<-" {
				found = append(found, "receives from a channel")
			}
		case *ast.SelectorExpr:
			if x, ok := n.X.(*ast.Ident); ok && slices.Contains(members[x.Name], n.Sel.Name) {
				found = append(found, "uses "+x.Name+"."+n.Sel.Name)
			}
		}
		return true
	})
	return found
}
