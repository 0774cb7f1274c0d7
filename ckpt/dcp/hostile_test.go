// SPDX-License-Identifier: Apache-2.0

package dcp_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"

	"phalanx/ckpt/dcp"
	"phalanx/ckpt/pickle"
)

// Values of an index, built by hand so that each part can be wrong.

func global(module, name string) *pickle.Global { return &pickle.Global{Module: module, Name: name} }

func tuple(items ...any) *pickle.Tuple { return &pickle.Tuple{Items: items} }

func list(items ...any) *pickle.List { return &pickle.List{Items: items} }

func dict(keysAndValues ...any) *pickle.Dict {
	d := &pickle.Dict{}
	for i := 0; i < len(keysAndValues); i += 2 {
		d.Pairs = append(d.Pairs, pickle.Pair{Key: keysAndValues[i], Value: keysAndValues[i+1]})
	}
	return d
}

func object(module, class string, state any) *pickle.Object {
	return &pickle.Object{Class: global(module, class), Args: tuple(), New: true, State: state, HasState: state != nil}
}

func call(module, name string, args ...any) *pickle.Object {
	return &pickle.Object{Class: global(module, name), Args: tuple(args...)}
}

func size(n ...any) *pickle.Object { return call("torch", "Size", tuple(n...)) }

// index is an index of one tensor "t" of shape (4, 2) in two chunks, and one object "o"; parts of it can be replaced.
type index struct {
	metadata, properties, filesystem string // modules
	dtype                            any
	state                            any // of the properties
	shape                            any
	chunks                           any
	entries                          []any // of state_dict_metadata
	records                          []any // of storage_data
	planner                          any
	more                             []any // fields of the root
}

func newIndex() *index {
	x := &index{metadata: "torch.distributed.checkpoint.metadata", properties: "torch.distributed.checkpoint.metadata", filesystem: "torch.distributed.checkpoint.filesystem"}
	x.fill()
	return x
}

func (x *index) fill() {
	x.dtype = global("torch", "float32")
	x.state = tuple(x.dtype, call("torch.serialization", "_get_layout", "torch.strided"), true, call(x.properties, "_MEM_FORMAT_ENCODING", 0), false)
	x.shape = size(4, 2)
	x.chunks = list(x.chunk(size(0, 0), size(3, 2)), x.chunk(size(3, 0), size(1, 2)))
	x.records = []any{x.key("t", size(0, 0)), x.place("f", 0, 100), x.key("t", size(3, 0)), x.place("d/f", 64, 100), x.key("o", nil), x.place("f", 100, 7)}
	x.planner = dict("t", tuple("model", 3, "t"), "o", tuple("o"))
	x.more = []any{"version", "1.0.0"}
}

func (x *index) chunk(offset, size any) any {
	return object(x.metadata, "ChunkStorageMetadata", dict("offsets", offset, "sizes", size))
}

func (x *index) key(name, offset any) any {
	return object(x.metadata, "MetadataIndex", dict("fqn", name, "index", 0, "offset", offset))
}

func (x *index) place(file, at, length any) *pickle.Object {
	return object(x.filesystem, "_StorageInfo", dict("relative_path", file, "offset", at, "length", length))
}

func (x *index) bytes(t testing.TB) []byte {
	t.Helper()
	tensor := object(x.metadata, "TensorStorageMetadata", dict("properties", object(x.properties, "TensorProperties", x.state), "size", x.shape, "chunks", x.chunks))
	entries := x.entries
	if entries == nil {
		entries = []any{"t", tensor, "o", object(x.metadata, "BytesStorageMetadata", nil)}
	}
	root := object(x.metadata, "Metadata", dict(append([]any{"state_dict_metadata", dict(entries...), "planner_data", x.planner, "storage_data", dict(x.records...)}, x.more...)...))
	b, err := pickle.Encode(root)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestMetadata: the index that the tests below damage is a good one, in the modules of every version.
func TestMetadata(t *testing.T) {
	want := dcp.Metadata{
		Tensors: []dcp.Tensor{{Name: "t", DType: "f32", DTypeName: "float32", Shape: []int{4, 2}, RequiresGrad: true, Chunks: []dcp.Chunk{
			{Offset: []int{0, 0}, Size: []int{3, 2}, File: "f", At: 0, Length: 100}, {Offset: []int{3, 0}, Size: []int{1, 2}, File: "d/f", At: 64, Length: 100}}}},
		Objects: []dcp.Object{{Name: "o", File: "f", At: 100, Length: 7}},
		Paths:   map[string][]any{"t": {"model", 3, "t"}, "o": {"o"}}, Version: "1.0.0", PropertyItems: 5,
	}
	for _, modules := range [][3]string{
		{"torch.distributed.checkpoint.metadata", "torch.distributed.checkpoint.metadata", "torch.distributed.checkpoint.filesystem"},
		{"torch.distributed.checkpoint.metadata", "torch.distributed._shard.sharded_tensor.metadata", "torch.distributed.checkpoint.filesystem"},
		{"torch.distributed._shard.checkpoint.metadata", "torch.distributed._shard.sharded_tensor.metadata", "torch.distributed._shard.checkpoint.filesystem"},
	} {
		x := &index{metadata: modules[0], properties: modules[1], filesystem: modules[2]}
		x.fill()
		m, err := dcp.DecodeMetadata(x.bytes(t), pickle.Limits{})
		if err != nil || !reflect.DeepEqual(*m, want) {
			t.Errorf("%v: %+v, %v", modules, m, err)
		}
	}
}

// TestMetadataKinds: what files may have and need not.
func TestMetadataKinds(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*index)
		check  func(*dcp.Metadata) bool
	}{
		{"six properties", func(x *index) { x.state.(*pickle.Tuple).Items = append(x.state.(*pickle.Tuple).Items, tuple(2, 1)) },
			func(m *dcp.Metadata) bool { return m.PropertyItems == 6 }},
		{"no version", func(x *index) { x.more = nil }, func(m *dcp.Metadata) bool { return m.Version == "" }},
		{"no planner", func(x *index) { x.planner = nil }, func(m *dcp.Metadata) bool { return m.Paths == nil }},
		{"a foreign planner", func(x *index) { x.planner = call("megatron.core", "Planner", list("x")) },
			func(m *dcp.Metadata) bool {
				return m.Paths == nil && len(m.Foreign) == 1 && m.Foreign[0].Module == "megatron.core" && m.Foreign[0].Name == "Planner" && m.Foreign[0].Offset > 0
			}},
		{"a foreign key", func(x *index) { x.planner = dict("t", tuple("m", call("enum", "Key", 1)), "o", tuple("o")) },
			func(m *dcp.Metadata) bool { return len(m.Paths) == 1 && m.Paths["o"] != nil && len(m.Foreign) == 1 }},
		{"more fields", func(x *index) { x.more = append(x.more, "mcore_data", dict("a", call("numpy", "dtype", "f4"))) },
			func(m *dcp.Metadata) bool { return len(m.Foreign) == 1 }},
		{"a path", func(x *index) {
			x.more = append(x.more, "storage_meta", object(x.metadata, "StorageMeta", dict("checkpoint_id", call("pathlib", "PosixPath", "a", "b"))))
		}, func(m *dcp.Metadata) bool { return len(m.Foreign) == 0 }},
		{"a new dtype", func(x *index) { x.state.(*pickle.Tuple).Items[0] = global("torch", "float4_e2m1fn_x2") },
			func(m *dcp.Metadata) bool {
				return m.Tensors[0].DType == "" && m.Tensors[0].DTypeName == "float4_e2m1fn_x2"
			}},
		{"transforms", func(x *index) {
			x.records[1] = object(x.filesystem, "_StorageInfo", dict("relative_path", "f", "offset", 0, "length", 9, "transform_descriptors", list("stream.zstd/1")))
		}, func(m *dcp.Metadata) bool {
			return slices.Equal(m.Tensors[0].Chunks[0].Transforms, []string{"stream.zstd/1"})
		}},
		{"an empty chunk without a record", func(x *index) {
			x.chunks.(*pickle.List).Items = append(x.chunks.(*pickle.List).Items, x.chunk(size(4, 0), size(0, 2)))
		},
			func(m *dcp.Metadata) bool { return m.Tensors[0].Chunks[2].File == "" }},
		{"an empty chunk at the offset of another", func(x *index) {
			x.chunks.(*pickle.List).Items = slices.Insert(x.chunks.(*pickle.List).Items, 0, x.chunk(size(3, 0), size(0, 2)))
		}, func(m *dcp.Metadata) bool {
			return m.Tensors[0].Chunks[0].File == "" && m.Tensors[0].Chunks[2].File == "d/f"
		}},
		{"sizes as tuples", func(x *index) { x.shape = tuple(4, 2) }, func(m *dcp.Metadata) bool { return slices.Equal(m.Tensors[0].Shape, []int{4, 2}) }},
		{"no tensors", func(x *index) { x.entries, x.records, x.planner = []any{}, nil, dict() },
			func(m *dcp.Metadata) bool { return len(m.Tensors) == 0 && m.PropertyItems == 0 }},
	} {
		x := newIndex()
		c.change(x)
		m, err := dcp.DecodeMetadata(x.bytes(t), pickle.Limits{})
		if err != nil || !c.check(m) {
			t.Errorf("%s: %+v, %v", c.name, m, err)
			continue
		}
		if b, err := m.Encode(); err != nil {
			t.Errorf("%s: written again: %v", c.name, err)
		} else if _, err := dcp.DecodeMetadata(b, pickle.Limits{}); err != nil {
			t.Errorf("%s: written again and read: %v", c.name, err)
		}
	}
}

// TestMetadataRefuses: a wrong index is refused, with the tensor and what is wrong; a foreign class where PyTorch has its own
// by its name.
func TestMetadataRefuses(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*index)
		says   []string
	}{
		{"a foreign dtype", func(x *index) { x.state.(*pickle.Tuple).Items[0] = global("evil", "float32") }, []string{`tensor "t"`, "its dtype", "evil.float32 at byte"}},
		{"a function as a dtype", func(x *index) { x.state.(*pickle.Tuple).Items[0] = global("torch", "add") }, []string{"torch.add at byte"}},
		{"foreign properties", func(x *index) { x.properties = "evil" }, []string{`tensor "t"`, "its properties", "evil.TensorProperties at byte"}},
		{"a foreign record", func(x *index) { x.records[1] = object("evil", "_StorageInfo", dict()) }, []string{"evil._StorageInfo at byte"}},
		{"a foreign root", func(x *index) { x.metadata = "evil" }, []string{"evil."}},
		{"a system call in the planner", func(x *index) { x.planner = dict("t", call("posix", "system", "true")) }, []string{"posix.system at byte", "run code"}},
		{"four properties", func(x *index) { x.state.(*pickle.Tuple).Items = x.state.(*pickle.Tuple).Items[:4] }, []string{"4 properties"}},
		{"no properties", func(x *index) { x.state = dict() }, []string{"state of its properties is a dict"}},
		{"a number as a tensor", func(x *index) { x.entries = []any{"t", 5} }, []string{`tensor "t"`, "an int"}},
		{"a number as a name", func(x *index) { x.entries = []any{5, 5} }, []string{"a name in state_dict_metadata is an int"}},
		{"two of a name", func(x *index) {
			x.entries = []any{"a", object(x.metadata, "BytesStorageMetadata", nil), "a", object(x.metadata, "BytesStorageMetadata", nil)}
			x.records = []any{x.key("a", nil), x.place("f", 0, 1)}
		},
			[]string{`two values are named "a"`}},
		{"two records", func(x *index) { x.records = append(x.records, x.key("t", size(0, 0)), x.place("f", 0, 1)) }, []string{"two records for one chunk"}},
		{"no record", func(x *index) { x.records = x.records[2:] }, []string{`tensor "t"`, "chunk at offset [0 0]", "does not say where"}},
		{"no record of an object", func(x *index) { x.records = x.records[:4] }, []string{`object "o"`, "does not say where"}},
		{"a path outside", func(x *index) { x.records[1] = x.place("../f", 0, 1) }, []string{`"../f"`, "no path inside"}},
		{"an absolute path", func(x *index) { x.records[1] = x.place("/etc/passwd", 0, 1) }, []string{`"/etc/passwd"`}},
		{"a path that goes up and down", func(x *index) { x.records[1] = x.place("a/../../f", 0, 1) }, []string{"no path inside"}},
		{"a path of Windows", func(x *index) { x.records[1] = x.place(`a\..\f`, 0, 1) }, []string{"no path inside"}},
		{"a negative place", func(x *index) { x.records[1] = x.place("f", -1, 1) }, []string{"at -1"}},
		{"a negative length", func(x *index) { x.records[1] = x.place("f", 1, -1) }, []string{"with -1 bytes"}},
		{"a place beyond numbers", func(x *index) { x.records[1] = x.place("f", int64(1)<<62, int64(1)<<62) }, []string{"its record is at"}},
		{"a place as text", func(x *index) { x.records[1] = x.place("f", "0", 1) }, []string{`the string "0"`}},
		{"two chunks at one offset", func(x *index) { x.chunks = list(x.chunk(size(0, 0), size(3, 2)), x.chunk(size(0, 0), size(4, 1))) }, []string{"two chunks at offset [0 0]"}},
		{"a chunk outside", func(x *index) { x.chunks = list(x.chunk(size(0, 0), size(5, 2))) }, []string{"not inside the shape [4 2]"}},
		{"a chunk far outside", func(x *index) { x.chunks = list(x.chunk(size(int64(1)<<62, 0), size(int64(1)<<62, 2))) }, []string{"not inside the shape"}},
		{"a negative chunk", func(x *index) { x.chunks = list(x.chunk(size(-1, 0), size(1, 2))) }, []string{"not inside the shape"}},
		{"a chunk of other dimensions", func(x *index) { x.chunks = list(x.chunk(size(0), size(4))) }, []string{"a chunk with offset [0]"}},
		{"a negative shape", func(x *index) { x.shape = size(-4, 2) }, []string{"the shape [-4 2]"}},
		{"a shape beyond numbers", func(x *index) { x.shape, x.chunks = size(int64(1)<<40, int64(1)<<40), list() }, []string{"the shape [1099511627776 1099511627776]"}},
		{"a shape of text", func(x *index) { x.shape = size("4") }, []string{`the string "4" among integers`}},
		{"no list of chunks", func(x *index) { x.chunks = tuple() }, []string{"list of its chunks is a tuple"}},
		{"a transform that is none", func(x *index) {
			x.records[1] = object(x.filesystem, "_StorageInfo", dict("relative_path", "f", "offset", 0, "length", 9, "transform_descriptors", list(1)))
		}, []string{"a transform of a record is an int"}},
		{"a dict for a root", func(x *index) { x.more = []any{"state_dict_metadata", 5} }, []string{"state_dict_metadata is an int"}},
	} {
		x := newIndex()
		c.change(x)
		m, err := dcp.DecodeMetadata(x.bytes(t), pickle.Limits{})
		if err == nil || m != nil {
			t.Errorf("%s: is read", c.name)
			continue
		}
		var unknown *pickle.UnknownGlobalError
		if !errors.Is(err, dcp.ErrMetadata) && !errors.As(err, &unknown) {
			t.Errorf("%s: %v is of no kind", c.name, err)
		}
		for _, says := range append(c.says, ".metadata: ") {
			if !strings.Contains(err.Error(), says) {
				t.Errorf("%s: %v, want %q", c.name, err, says)
			}
		}
	}
	good := newIndex().bytes(t)
	for _, b := range [][]byte{append(slices.Clone(good), 'x'), []byte("\x80\x04}."), []byte("{\"json\": true}"), {}} {
		if _, err := dcp.DecodeMetadata(b, pickle.Limits{}); err == nil {
			t.Errorf("%q is read", b[:min(len(b), 20)])
		}
	}
}

// TestMetadataBomb: a list of chunks that many tensors share is small in the file, and would be large when it is read.
func TestMetadataBomb(t *testing.T) {
	x := newIndex()
	var chunks []any
	for i := range 2000 {
		chunks = append(chunks, x.chunk(size(i), size(1)))
	}
	shared := list(chunks...)
	properties := object(x.properties, "TensorProperties", x.state)
	for i := range 2000 {
		x.entries = append(x.entries, fmt.Sprint("t", i), object(x.metadata, "TensorStorageMetadata", dict("properties", properties, "size", size(2000), "chunks", shared)))
	}
	b := x.bytes(t)
	if _, err := dcp.DecodeMetadata(b, pickle.Limits{}); !errors.Is(err, pickle.ErrLimit) || len(b) > 1<<20 {
		t.Errorf("%d bytes: %v", len(b), err)
	}
}

// TestLongName: a name that many chunks share is not copied for each.
func TestLongName(t *testing.T) {
	x := newIndex()
	name := strings.Repeat("n", 1<<20)
	x.records = nil
	var chunks []any
	for i := range 500 {
		chunks = append(chunks, x.chunk(size(i), size(1)))
		x.records = append(x.records, x.key(name, size(i)), x.place("f", i, 1))
	}
	tensor := object(x.metadata, "TensorStorageMetadata", dict("properties", object(x.properties, "TensorProperties", x.state), "size", size(500), "chunks", list(chunks...)))
	x.entries, x.planner = []any{name, tensor}, dict()
	b := x.bytes(t)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err := dcp.DecodeMetadata(b, pickle.Limits{Expansion: 1 << 40})
	runtime.ReadMemStats(&after)
	if used := after.TotalAlloc - before.TotalAlloc; err != nil || used > 16*uint64(len(b)) || len(b) > 2<<20 {
		t.Errorf("%d bytes took %d, %v", len(b), used, err)
	}
}

// TestEncodeRefuses: an index that could not be read back is not written.
func TestEncodeRefuses(t *testing.T) {
	for says, change := range map[string]func(*dcp.Metadata){
		"two values":                func(m *dcp.Metadata) { m.Objects[0].Name = m.Tensors[0].Name },
		`dtype "f31"`:               func(m *dcp.Metadata) { m.Tensors[0].DType = "f31" },
		`dtype "system"`:            func(m *dcp.Metadata) { m.Tensors[1].DTypeName = "system" },
		"no dtype":                  func(m *dcp.Metadata) { m.Tensors[1].DTypeName = "" },
		"not inside":                func(m *dcp.Metadata) { m.Tensors[0].Chunks[0].Size[0] = 9 },
		"does not say":              func(m *dcp.Metadata) { m.Tensors[0].Chunks[0].File = "" },
		"no path inside":            func(m *dcp.Metadata) { m.Objects[0].File = "../x" },
		"two chunks":                func(m *dcp.Metadata) { m.Tensors[0].Chunks[1].Offset[0] = 0 },
		`path of "o" has a float32`: func(m *dcp.Metadata) { m.Paths["o"] = []any{float32(1)} },
	} {
		m := smallMetadata()
		change(m)
		if b, err := m.Encode(); err == nil || b != nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%q: %v", says, err)
		}
	}
}

// TestRecordDamage: a record with any byte of its description changed is refused or says the same, and one whose payload was
// changed has another checksum than it says.
func TestRecordDamage(t *testing.T) {
	ours, _ := record(t, "f32", []int{2, 3})
	records := [][]byte{ours}
	all := goldens()
	for _, g := range []golden{all[0], all[len(all)-1]} {
		c := readMetadata(t, g.dir()).Tensors[0].Chunks[0]
		records = append(records, readRecord(t, g.dir(), c.File, c.At, c.Length))
	}
	for _, content := range records {
		want, err := dcp.ParseRecord(bytes.NewReader(content), int64(len(content)))
		if err != nil {
			t.Fatal(err)
		}
		for i := range content {
			for _, flip := range []byte{1, 0x80, 0xff} {
				b := slices.Clone(content)
				b[i] ^= flip
				info, err := dcp.ParseRecord(bytes.NewReader(b), int64(len(b)))
				if err == nil && (info.At < 0 || info.At+info.StorageBytes > int64(len(b))) {
					t.Fatalf("byte %d: its storage is %d bytes at %d of %d", i, info.StorageBytes, info.At, len(b))
				}
				if err == nil && !reflect.DeepEqual(info.Tensor, want.Tensor) {
					t.Errorf("byte %d changed by %#x: %+v, want %+v", i, flip, info.Tensor, want.Tensor)
				}
			}
		}
		for n := range content {
			if _, err := dcp.ParseRecord(bytes.NewReader(content[:n]), int64(n)); err == nil {
				t.Fatalf("%d bytes of %d are read", n, len(content))
			}
		}
	}
}

// TestRecordKinds: big-endian archives are read, compressed ones and those of something else are refused.
func TestRecordKinds(t *testing.T) {
	data, err := pickle.EncodeTensor("f32", []int{2})
	if err != nil {
		t.Fatal(err)
	}
	values := binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(nil, 1), 2)
	parse := func(b []byte) (dcp.RecordInfo, error) { return dcp.ParseRecord(bytes.NewReader(b), int64(len(b))) }
	big := archive(t, false, "a/data.pkl", string(data), "a/byteorder", "big", "a/data/0", string(values))
	if info, err := parse(big); err != nil || !info.Swap || !bytes.Equal(big[info.At:info.At+8], values) {
		t.Errorf("big-endian: %+v, %v", info, err)
	}
	if info, err := parse(archive(t, false, "a/data.pkl", string(data), "a/data/0", string(values))); err != nil || info.Swap {
		t.Errorf("without a byte order: %+v, %v", info, err)
	}
	for says, b := range map[string][]byte{
		"stored as":                     archive(t, true, "a/data.pkl", string(data), "a/data/0", string(values)),
		"and its storage 8":             archive(t, false, "a/data.pkl", string(data), "a/data/0", "1234567"),
		`no member "data/0"`:            archive(t, false, "a/data.pkl", string(data)),
		`no member "data.pkl"`:          archive(t, false, "a/data/0", "12345678"),
		`two members "data/0"`:          archive(t, false, "a/data.pkl", string(data), "a/data/0", "12345678", "a/data/0", "87654321"),
		`"data.pkl" is in no folder`:    archive(t, false, "data.pkl", string(data)),
		`its byte order is "middle"`:    archive(t, false, "a/data.pkl", string(data), "a/byteorder", "middle", "a/data/0", string(values)),
		"it holds a dict":               archive(t, false, "a/data.pkl", "}."),
		"names os.system":               archive(t, false, "a/data.pkl", "cos\nsystem\n."),
		"names __main__.Model":          archive(t, false, "a/data.pkl", "c__main__\nModel\n."),
		"not a record of a tensor: zip": []byte("no archive"),
	} {
		if _, err := parse(b); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%v, want %q", err, says)
		}
	}
}
