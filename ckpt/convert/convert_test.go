// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"phalanx"
	"phalanx/ckpt"
	"phalanx/ckpt/elem"
	"phalanx/ckpt/fs"
	"phalanx/ckpt/mem"
	"phalanx/ckpt/view"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func openDirectory(_ context.Context, place string) (ckpt.Store, error) { return fs.NewReadOnly(place) }

type tester interface {
	Fatal(args ...any)
	Fatalf(format string, args ...any)
	Helper()
}

// state is a checkpoint in memory.
type state struct {
	layout  []phalanx.TensorInfo
	content [][]byte
}

func (s *state) Layout() []phalanx.TensorInfo { return s.layout }
func (s *state) ReadAt(tensor int, off int64, p []byte) error {
	copy(p, s.content[tensor][off:])
	return nil
}

// published is a checkpoint of one coordinate that two ranks wrote.
func published(t tester, layout []phalanx.TensorInfo, chunk int64, container string) (*view.View, *state) {
	t.Helper()
	s := &state{layout: layout}
	random := rand.New(rand.NewPCG(3, 9))
	for _, info := range layout {
		p := make([]byte, info.Bytes())
		for i := range p {
			p[i] = byte(random.Uint32())
		}
		s.content = append(s.content, p)
	}
	store := mem.New()
	ctx := context.Background()
	a := ckpt.Attempt{Job: "job", Step: 7, Generation: phalanx.Generation{Number: 3}, Term: 1, Counter: 1}
	plan, err := ckpt.NewPlan(0, layout, []phalanx.Rank{0, 1}, ckpt.PlanOptions{Container: container, ObjectBytes: chunk*4 + 8192, ChunkBytes: chunk})
	if err != nil {
		t.Fatal(err)
	}
	var refs []ckpt.PartRef
	for _, r := range []phalanx.Rank{0, 1} {
		ref, err := ckpt.WriteShard(ctx, store, a, r, plan, s)
		if err != nil {
			t.Fatal(err)
		}
		refs = append(refs, ref)
	}
	label := phalanx.Label{Step: 7, Generation: a.Generation}
	if _, err := ckpt.Publish(ctx, store, ckpt.Publication{Attempt: a, Labels: []phalanx.Label{label}, UnixNS: 5}, refs); err != nil {
		t.Fatal(err)
	}
	cp, err := ckpt.OpenLatest(ctx, store, "job")
	if err != nil {
		t.Fatal(err)
	}
	v, err := view.FromCheckpoint(store, cp)
	if err != nil {
		t.Fatal(err)
	}
	return v, s
}

// read is the content of a tensor.
func read(t tester, v *view.View, name string) []byte {
	t.Helper()
	i := v.Tensor(name)
	if i < 0 {
		t.Fatalf("no tensor %s", name)
	}
	p := make([]byte, v.Tensors[i].Bytes())
	if err := v.ReadBox(context.Background(), i, view.Whole(v.Tensors[i].Shape), p); err != nil {
		t.Fatal(err)
	}
	return p
}

// same compares two checkpoints tensor by tensor.
func same(t tester, a, b *view.View) {
	t.Helper()
	if d := view.Compare(a.Layout(), b.Layout()); !d.Empty() {
		t.Fatalf("the tensors differ:\n%s", d)
	}
	for i := range a.Tensors {
		if name := a.Tensors[i].Name; !bytes.Equal(read(t, a, name), read(t, b, name)) {
			t.Fatalf("tensor %q differs", name)
		}
	}
}

// convert writes everything of a source into a folder and opens it.
func convert(t tester, v *view.View, path string, o Options) *view.View {
	t.Helper()
	items, err := Select(v, Selection{})
	if err != nil {
		t.Fatal(err)
	}
	to, err := NewFolder(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Run(context.Background(), v, items, to, o); err != nil {
		t.Fatal(err)
	}
	out, err := view.Open(context.Background(), path, openDirectory, view.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if out.Format != o.To {
		t.Fatalf("wrote %s, opened %s", o.To, out.Format)
	}
	return out
}

// convertInMemory is convert into a store, without a disk to wait for.
func convertInMemory(t tester, v *view.View, o Options) *view.View {
	t.Helper()
	store := mem.New()
	items, err := Select(v, Selection{})
	if err != nil {
		t.Fatal(err)
	}
	to, err := NewPrefix(context.Background(), store, "b", "mem")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Run(context.Background(), v, items, to, o); err != nil {
		t.Fatal(err)
	}
	open := func(context.Context, string) (ckpt.Store, error) { return store, nil }
	out, err := view.Open(context.Background(), "mem://a/b", open, view.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if out.Format != o.To {
		t.Fatalf("wrote %s, opened %s", o.To, out.Format)
	}
	return out
}

// TestEveryFormat: through every format, with files that cut tensors anywhere, a state keeps all bits.
func TestEveryFormat(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var layout []phalanx.TensorInfo
		dtypes := slices.DeleteFunc(phalanx.DTypes(), func(d string) bool { return d == "c128" }) // safetensors has no name for it
		for i := range rapid.IntRange(1, 6).Draw(t, "tensors") {
			layout = append(layout, phalanx.TensorInfo{
				Name:  fmt.Sprintf("%s%d", rapid.SampledFrom([]string{"a.b.", "ü/ x", "名"}).Draw(t, "name"), i),
				DType: rapid.SampledFrom(dtypes).Draw(t, "dtype"),
				Shape: rapid.SliceOfN(rapid.IntRange(0, 12), 0, 4).Draw(t, "shape"),
			})
		}
		before, _ := published(t, layout, rapid.Int64Range(64, 4096).Draw(t, "chunk"), rapid.SampledFrom([]string{ckpt.ContainerRaw, ckpt.ContainerDCP}).Draw(t, "container"))
		for range 2 {
			to := rapid.SampledFrom([]view.Format{view.DCP, view.Safetensors, view.Raw}).Draw(t, "to")
			after := convertInMemory(t, before, Options{To: to, ShardBytes: rapid.Int64Range(1, 20_000).Draw(t, "shard")})
			same(t, before, after)
			before = after
		}
	})
}

// TestGoldenThereAndBack: a checkpoint of PyTorch, as safetensors, and as DCP again, has the same values; as DCP it has the same
// objects.
func TestGoldenThereAndBack(t *testing.T) {
	for _, ranks := range []int{1, 2, 4} {
		for _, version := range []string{"dcp-2.11", "dcp-2.15"} {
			v, err := view.Open(t.Context(), fmt.Sprintf("../dcp/testdata/%s/d%d", version, ranks), openDirectory, view.Options{})
			if err != nil {
				t.Fatal(err)
			}
			dir := t.TempDir()
			there := convert(t, v, filepath.Join(dir, "safetensors"), Options{To: view.Safetensors})
			same(t, v, there)
			same(t, v, convert(t, there, filepath.Join(dir, "dcp"), Options{To: view.DCP}))
			again := convert(t, v, filepath.Join(dir, "again"), Options{To: view.DCP, ShardBytes: 2000})
			same(t, v, again)
			if len(again.Objects) != len(v.Objects) || len(v.Objects) == 0 {
				t.Fatalf("%d objects of %d", len(again.Objects), len(v.Objects))
			}
			for i, o := range v.Objects {
				p, q := make([]byte, o.Length), make([]byte, again.Objects[i].Length)
				if err := errors.Join(v.Files().Read(t.Context(), o.Object, o.At, p), again.Files().Read(t.Context(), again.Objects[i].Object, again.Objects[i].At, q)); err != nil {
					t.Fatal(err)
				}
				if o.Name != again.Objects[i].Name || !bytes.Equal(p, q) {
					t.Fatalf("object %s differs", o.Name)
				}
			}
			if fmt.Sprint(again.Paths) != fmt.Sprint(v.Paths) {
				t.Errorf("paths %v became %v", v.Paths, again.Paths)
			}
		}
	}
}

// TestDamageLeavesNothing: a damaged source is noticed, and nothing of the target is left.
func TestDamageLeavesNothing(t *testing.T) {
	dir := t.TempDir()
	v, _ := published(t, []phalanx.TensorInfo{{Name: "a", DType: "f32", Shape: []int{100, 10}}, {Name: "b", DType: "u8", Shape: []int{3}}}, 256, ckpt.ContainerRaw)
	raw := convert(t, v, filepath.Join(dir, "raw"), Options{To: view.Raw})
	file := filepath.Join(dir, "raw", raw.Tensors[0].Shards[0].Object)
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	b[len(b)-1] ^= 1
	if err := os.WriteFile(file, b, 0o600); err != nil {
		t.Fatal(err)
	}
	items, err := Select(raw, Selection{})
	if err != nil {
		t.Fatal(err)
	}
	for _, to := range []view.Format{view.DCP, view.Safetensors, view.Raw} {
		store := mem.New()
		folder, err := NewFolder(filepath.Join(dir, "out"))
		if err != nil {
			t.Fatal(err)
		}
		single, err := NewFile(filepath.Join(dir, "out.safetensors"))
		if err != nil {
			t.Fatal(err)
		}
		prefix, err := NewPrefix(t.Context(), store, "out", "mem")
		if err != nil {
			t.Fatal(err)
		}
		for _, target := range []Target{folder, single, prefix} {
			if target == single && to != view.Safetensors {
				single.Abort()
				continue
			}
			var damage *view.DamageError
			if _, err := Run(t.Context(), raw, items, target, Options{To: to}); !errors.As(err, &damage) || damage.Tensor != "a" {
				t.Fatalf("%s: got %v", to, err)
			}
		}
		left, err := os.ReadDir(dir)
		if err != nil || len(left) != 1 {
			t.Fatalf("%s left %v, %v", to, left, err)
		}
		if page, err := store.List(t.Context(), "", "", 0); err != nil || len(page) > 0 {
			t.Fatalf("%s left %v, %v", to, page, err)
		}
	}
}

// TestStoreTarget: into a store, the index last.
func TestStoreTarget(t *testing.T) {
	v, _ := published(t, []phalanx.TensorInfo{{Name: "a", DType: "f32", Shape: []int{100, 10}}, {Name: "b", DType: "u8", Shape: []int{3}}}, 256, ckpt.ContainerRaw)
	items, err := Select(v, Selection{})
	if err != nil {
		t.Fatal(err)
	}
	store := mem.New()
	to, err := NewPrefix(t.Context(), store, "some/where", "mem")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Run(t.Context(), v, items, to, Options{To: view.DCP, ShardBytes: 3000}); err != nil {
		t.Fatal(err)
	}
	if sent := to.(*prefixed).sent; sent[len(sent)-1] != "some/where/.metadata" || len(sent) < 3 {
		t.Fatalf("sent %v", sent)
	}
	open := func(_ context.Context, place string) (ckpt.Store, error) {
		if place == "mem://x/some" {
			return below{store, "some/"}, nil
		}
		return mem.New(), nil
	}
	got, err := view.Open(t.Context(), "mem://x/some/where", open, view.Options{})
	if err != nil {
		t.Fatal(err)
	}
	same(t, v, got)
	if _, err := NewPrefix(t.Context(), store, "some/where", "mem"); !errors.Is(err, ErrOccupied) {
		t.Fatalf("a prefix with objects: %v", err)
	}
}

// below is a store whose root is a prefix of another.
type below struct {
	ckpt.Store
	prefix string
}

func (b below) Get(ctx context.Context, key string, off, n int64) ([]byte, error) {
	return b.Store.Get(ctx, b.prefix+key, off, n)
}
func (b below) Stat(ctx context.Context, key string) (ckpt.Info, error) {
	return b.Store.Stat(ctx, b.prefix+key)
}
func (b below) List(ctx context.Context, prefix, after string, limit int) ([]ckpt.Info, error) {
	if after != "" {
		after = b.prefix + after
	}
	page, err := b.Store.List(ctx, b.prefix+prefix, after, limit)
	for i := range page {
		page[i].Key = strings.TrimPrefix(page[i].Key, b.prefix)
	}
	return page, err
}

// TestSelect: names, globs, and what cannot be.
func TestSelect(t *testing.T) {
	v, _ := published(t, []phalanx.TensorInfo{
		{Name: "module.a", DType: "f32", Shape: []int{2}}, {Name: "module._orig_mod.b._orig_mod.w", DType: "i64", Shape: []int{2}}, {Name: "c", DType: "bf16", Shape: []int{}},
	}, 64, ckpt.ContainerRaw)
	names := func(s Selection) string {
		items, err := Select(v, s)
		if err != nil {
			return err.Error()
		}
		var out []string
		for _, it := range items {
			out = append(out, it.Name+":"+it.DType)
		}
		return strings.Join(out, " ")
	}
	for _, c := range []struct {
		s    Selection
		want string
	}{
		{Selection{}, "module.a:f32 module._orig_mod.b._orig_mod.w:i64 c:bf16"},
		{Selection{Strip: true}, "a:f32 b.w:i64 c:bf16"},
		{Selection{Only: []string{"module.?", "c"}}, "module.a:f32 c:bf16"},
		{Selection{DType: "f16", Strip: true}, "a:f16 b.w:i64 c:f16"},
		{Selection{Renames: []Rename{{"module.", "model."}, {"c", "d"}}}, "model.a:f32 model._orig_mod.b._orig_mod.w:i64 d:bf16"},
		{Selection{Strip: true, Renames: []Rename{{"a", "c"}}}, `"module.a" and "c" would both be "c": two tensors have one name`},
		{Selection{Only: []string{"x*"}}, "no tensor of mem:/job/step-7-g3-a1.1 is selected: object not found"},
		{Selection{Renames: []Rename{{"c", ""}}}, `"c" would get the name "": a tensor needs a name`},
		{Selection{DType: "i64"}, `dtype "i64": tensors are cast to floating-point types only: ` + strings.Join(floats, ", ")},
	} {
		if got := names(c.s); got != c.want {
			t.Errorf("%+v: %s, want %s", c.s, got, c.want)
		}
	}
}

// TestWhatAFormatCannotHold: it is told from other failures, before anything is there.
func TestWhatAFormatCannotHold(t *testing.T) {
	dir := t.TempDir()
	v, _ := published(t, []phalanx.TensorInfo{{Name: "a", DType: "c128", Shape: []int{2}}}, 64, ckpt.ContainerRaw)
	items, err := Select(v, Selection{})
	if err != nil {
		t.Fatal(err)
	}
	to, err := NewFolder(filepath.Join(dir, "out"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Run(t.Context(), v, items, to, Options{To: view.Safetensors}); !errors.Is(err, ErrFormat) {
		t.Errorf("c128 as safetensors: %v", err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
	for _, tensor := range []phalanx.TensorInfo{{DType: "u8", Shape: []int{1}}, {Name: "deep", DType: "u8", Shape: make([]int, 100_000)}} {
		v := &view.View{Tensors: []view.Tensor{{Name: tensor.Name, DType: tensor.DType, Shape: tensor.Shape}}}
		if _, err := Select(v, Selection{}); !errors.Is(err, ErrFormat) {
			t.Errorf("tensor %q of %d dimensions: %v", tensor.Name, len(tensor.Shape), err)
		}
	}
}

// TestOccupied: what is there is left alone.
func TestOccupied(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "x.safetensors")
	if err := os.WriteFile(file, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := NewFolder(dir); !errors.Is(err, ErrOccupied) {
		t.Errorf("folder: %v", err)
	}
	if _, err := NewFolder(file); !errors.Is(err, ErrOccupied) {
		t.Errorf("file as folder: %v", err)
	}
	if _, err := NewFile(file); !errors.Is(err, ErrOccupied) {
		t.Errorf("file: %v", err)
	}
	if err := os.Symlink(t.TempDir(), filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	if _, err := NewFolder(filepath.Join(dir, "link")); !errors.Is(err, ErrOccupied) {
		t.Errorf("symbolic link: %v", err)
	}
	var both []Target // two that write one folder: the second to be done loses, and leaves nothing
	for range 2 {
		to, err := NewFolder(filepath.Join(dir, "both"))
		if err != nil {
			t.Fatal(err)
		}
		if err := writeWhole(t.Context(), to, "a", []byte("a")); err != nil {
			t.Fatal(err)
		}
		both = append(both, to)
	}
	if err := both[1].Commit(t.Context()); err != nil {
		t.Error(err)
	}
	if err := both[0].Commit(t.Context()); !errors.Is(err, ErrOccupied) {
		t.Errorf("the loser: %v", err)
	}
	both[0].Abort()
	if left, err := filepath.Glob(filepath.Join(dir, "both*")); err != nil || len(left) != 1 {
		t.Errorf("left: %v, %v", left, err)
	}
	if b, err := os.ReadFile(file); err != nil || string(b) != "mine" {
		t.Errorf("%q, %v", b, err)
	}
}

// TestCast: numbers are rounded to the nearest that the dtype has, and those beyond it are counted.
func TestCast(t *testing.T) {
	dir := t.TempDir()
	v, s := published(t, []phalanx.TensorInfo{{Name: "a", DType: "f32", Shape: []int{3, 7000}}, {Name: "n", DType: "i64", Shape: []int{2}}}, 1<<20, ckpt.ContainerRaw)
	items, err := Select(v, Selection{DType: "f16"})
	if err != nil {
		t.Fatal(err)
	}
	to, err := NewFolder(filepath.Join(dir, "out"))
	if err != nil {
		t.Fatal(err)
	}
	result, err := Run(t.Context(), v, items, to, Options{To: view.DCP, ShardBytes: 5000})
	if err != nil {
		t.Fatal(err)
	}
	got, err := view.Open(t.Context(), filepath.Join(dir, "out"), openDirectory, view.Options{})
	if err != nil {
		t.Fatal(err)
	}
	want := make([]byte, 3*7000*2)
	loss, err := elem.Cast(want, "f16", s.content[0], "f32")
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(read(t, got, "a"), want) || !bytes.Equal(read(t, got, "n"), s.content[1]) {
		t.Error("other numbers")
	}
	if loss.Beyond == 0 || len(result.Beyond) != 1 || result.Beyond[0] != (Beyond{"a", loss.Beyond}) {
		t.Errorf("%+v, lost %+v", result.Beyond, loss)
	}
}
