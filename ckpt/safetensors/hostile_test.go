// SPDX-License-Identifier: Apache-2.0

package safetensors_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"runtime/debug"
	"strings"
	"testing"
	"time"

	"phalanx"
	"phalanx/ckpt/safetensors"
)

// file is a header and as many bytes of data.
func file(header string, data int) []byte {
	b := binary.LittleEndian.AppendUint64(nil, uint64(len(header)))
	return append(append(b, header...), make([]byte, data)...)
}

func TestRefused(t *testing.T) {
	const a = `"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}`
	long := file("{"+a+"}", 8)
	binary.LittleEndian.PutUint64(long, 1<<40)
	far := file("{"+a+"}", 8)
	binary.LittleEndian.PutUint64(far, 100)
	for name, c := range map[string]struct {
		content []byte
		want    string
	}{
		"empty":             {nil, "0 bytes, less than the 8 bytes"},
		"short":             {make([]byte, 7), "7 bytes, less than"},
		"no header":         {make([]byte, 8), "offset 8: the JSON object is missing"},
		"huge":              {long, "offset 0: the header has 1099511627776 bytes, more than the limit of 100000000"},
		"beyond":            {far, "offset 0: the header has 100 bytes and ends at 108, the file has 70"},
		"truncated":         {file("{"+a+"}", 7), `tensor "a" has bytes [62, 70), the file ends at 69: 1 bytes are missing`},
		"trailing":          {file("{"+a+"}", 9), `tensor "a" ends at offset 70, the file has 71 bytes: 1 bytes belong to no tensor`},
		"hole":              {file(`{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[2],"data_offsets":[3,5]}}`, 5), `[115, 116) between tensor "a" and tensor "b" belong to no tensor`},
		"hole at the begin": {file(`{"a":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}}`, 3), `between the header and tensor "a"`},
		"overlap":           {file(`{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}}`, 3), `tensor "b" begins at offset 114, inside of tensor "a", which ends at 115`},
		"twice":             {file("{"+a+","+a+"}", 8), `the key "a" comes twice`},
		"escaped twice":     {file("{"+a+`,"\u0061"`+a[3:]+"}", 8), `the key "a" comes twice`},
		"field twice":       {file(`{"a":{"dtype":"F32","dtype":"U8","shape":[2],"data_offsets":[0,8]}}`, 8), `the key "dtype" comes twice`},
		"metadata twice":    {file(`{"__metadata__":{},"__metadata__":{}}`, 0), `the key "__metadata__" comes twice`},
		"metadata key":      {file(`{"__metadata__":{"x":"1","x":"2"}}`, 0), `the key "x" comes twice`},
		"metadata number":   {file(`{"__metadata__":{"x":1}}`, 0), `__metadata__ "x": want a string, found 1`},
		"metadata list":     {file(`{"__metadata__":[]}`, 0), `want an object`},
		"unknown dtype":     {file(`{"a":{"dtype":"F33","shape":[2],"data_offsets":[0,8]}}`, 8), `unknown dtype "F33"`},
		"half a byte":       {file(`{"a":{"dtype":"F4","shape":[3],"data_offsets":[0,2]}}`, 2), `no whole number of bytes`},
		"too large":         {file(`{"a":{"dtype":"F32","shape":[4611686018427387903,4,4],"data_offsets":[0,0]}}`, 0), `more than can be counted`},
		"zero times large":  {file(`{"a":{"dtype":"F32","shape":[0,4611686018427387903,4],"data_offsets":[0,0]}}`, 0), `more than can be counted`},
		"negative":          {file(`{"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,0]}}`, 0), `want a whole number from 0, found -1`},
		"fraction":          {file(`{"a":{"dtype":"F32","shape":[2.0],"data_offsets":[0,8]}}`, 8), `found 2.0`},
		"exponent":          {file(`{"a":{"dtype":"F32","shape":[2e0],"data_offsets":[0,8]}}`, 8), `found 2e0`},
		"backwards":         {file(`{"a":{"dtype":"F32","shape":[2],"data_offsets":[8,0]}}`, 8), `data_offsets are [8 0]`},
		"three offsets":     {file(`{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8,8]}}`, 8), `data_offsets are [0 8 8]`},
		"other length":      {file(`{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,7]}}`, 7), `has 8 bytes, data_offsets give 7`},
		"no shape":          {file(`{"a":{"dtype":"F32","data_offsets":[0,8]}}`, 8), `is missing`},
		"shape null":        {file(`{"a":{"dtype":"F32","shape":null,"data_offsets":[0,8]}}`, 8), `want "["`},
		"list":              {file(`[]`, 0), `begins with '[', want "{"`},
		"space before":      {file(` {}`, 0), `begins with ' '`},
		"more JSON":         {file(`{} {}`, 0), `followed by {`},
		"cut JSON":          {file(`{"a":`, 0), `offset 13: the JSON text ends too early`},
		"not JSON":          {file(`{"a"=1}`, 0), `JSON: invalid character '='`},
		"not UTF-8":         {file("{\"a\xff\":1}", 0), `offset 11: the JSON text is no valid Unicode`},
		"half a surrogate":  {file(`{"\ud800":1}`, 0), `offset 10: the JSON text is no valid Unicode`},
		"deep":              {file(`{"a":{"x":`+strings.Repeat("[", 1<<20), 0), `nested deeper than 16`},
		"deep tensor":       {file(`{"a":[[[[]]]]}`, 0), `want "{"`},
	} {
		f, err := safetensors.Read(bytes.NewReader(c.content), int64(len(c.content)))
		if err == nil || !errors.Is(err, safetensors.ErrDamaged) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %+v, %v, want %s", name, f, err, c.want)
		}
	}
}

func TestAccepted(t *testing.T) {
	for name, content := range map[string][]byte{
		"nothing":        file(`{}`, 0),
		"padded":         file(`{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}`+strings.Repeat(" ", 20), 8),
		"null metadata":  file(`{"__metadata__":null}`, 0),
		"unknown field":  file(`{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8],"x":{"y":[1,{"z":null}]}}}`, 8),
		"any order":      file(`{"b":{"data_offsets":[2,3],"dtype":"U8","shape":[]},"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}}`, 3),
		"empty between":  file(`{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"e":{"dtype":"U8","shape":[0],"data_offsets":[2,2]},"f":{"dtype":"U8","shape":[0,9],"data_offsets":[0,0]}}`, 2),
		"surrogate pair": file(`{"__metadata__":{"x":"\ud83d\ude00 \\ud800"}}`, 0),
	} {
		if _, err := safetensors.Read(bytes.NewReader(content), int64(len(content))); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// files is a folder in memory.
type files map[string][]byte

func (f files) Files(context.Context) (map[string]int64, error) {
	sizes := map[string]int64{}
	for name, content := range f {
		sizes[name] = int64(len(content))
	}
	return sizes, nil
}

func (f files) Get(_ context.Context, name string, off, n int64) ([]byte, error) {
	content := f[name]
	return content[off:min(off+n, int64(len(content)))], nil
}

func boxFile(t testing.TB, offset, size []int) []byte {
	return write(t, []phalanx.TensorInfo{{Name: "w", DType: "u8", Shape: size}}, safetensors.ShardingMetadata(map[string][]int{"w": offset}))
}

func TestFoldersRefused(t *testing.T) {
	one := func(names ...string) []byte {
		var infos []phalanx.TensorInfo
		for _, n := range names {
			infos = append(infos, phalanx.TensorInfo{Name: n, DType: "u8", Shape: []int{2}})
		}
		return write(t, infos, nil)
	}
	index := func(weights string) []byte {
		return []byte(`{"metadata":{"total_size":2},"weight_map":{` + weights + `}}`)
	}
	for name, c := range map[string]struct {
		folder files
		want   string
	}{
		"nothing":         {files{"x.txt": nil}, "neither model.safetensors.index.json nor"},
		"missing file":    {files{safetensors.IndexName: index(`"a":"b.safetensors"`)}, "b.safetensors is missing"},
		"other file":      {files{safetensors.IndexName: index(`"a":"b.safetensors"`), "b.safetensors": one("c")}, `tensor "a" is not in b.safetensors`},
		"outside":         {files{safetensors.IndexName: index(`"a":"../b.safetensors"`)}, "no file of this folder"},
		"absolute":        {files{safetensors.IndexName: index(`"a":"/b.safetensors"`)}, "no file of this folder"},
		"other kind":      {files{safetensors.IndexName: index(`"a":"passwd"`)}, "no file of this folder"},
		"twice in index":  {files{safetensors.IndexName: index(`"a":"b.safetensors","a":"c.safetensors"`)}, `the key "a" comes twice`},
		"no weights":      {files{safetensors.IndexName: []byte(`{}`)}, "weight_map is missing"},
		"empty index":     {files{safetensors.IndexName: nil}, "the JSON object is missing"},
		"in two files":    {files{"a.safetensors": one("x"), "b.safetensors": one("x")}, `"x" is in a.safetensors and in b.safetensors`},
		"broken file":     {files{"a.safetensors": one("x")[:40]}, "a.safetensors: not a whole safetensors file: offset 0"},
		"boxes overlap":   {files{"a.safetensors": boxFile(t, []int{0, 0}, []int{2, 2}), "b.safetensors": boxFile(t, []int{1, 1}, []int{2, 2})}, "[0 0] of size [2 2] in a.safetensors overlaps the one at [1 1]"},
		"box missing":     {files{"a.safetensors": boxFile(t, []int{0, 0}, []int{2, 2}), "b.safetensors": boxFile(t, []int{2, 2}, []int{2, 2})}, "its 2 boxes have 8 of 16 elements"},
		"scalar twice":    {files{"a.safetensors": boxFile(t, []int{}, []int{}), "b.safetensors": boxFile(t, []int{}, []int{})}, "overlaps"},
		"dimensions":      {files{"a.safetensors": boxFile(t, []int{0}, []int{2}), "b.safetensors": boxFile(t, []int{0, 2}, []int{2, 2})}, "u8 in 1 dimensions"},
		"no offset":       {files{"a.safetensors": write(t, []phalanx.TensorInfo{{Name: "w", DType: "u8"}}, safetensors.ShardingMetadata(map[string][]int{"v": {}}))}, `tensor "w" has 0 dimensions, and 0 offsets`},
		"offset, no list": {files{"a.safetensors": write(t, []phalanx.TensorInfo{{Name: "w", DType: "u8"}}, map[string]string{"DCP_SHARDING_INFO": `{"w":{"saved_offsets":3}}`})}, `want "["`},
		"far away":        {files{"a.safetensors": boxFile(t, []int{1 << 61, 1 << 61}, []int{1, 1})}, "more elements than can be counted"},
	} {
		set, err := safetensors.OpenFolder(t.Context(), c.folder)
		if err == nil || !errors.Is(err, safetensors.ErrDamaged) || !strings.Contains(strings.ToLower(err.Error()), strings.ToLower(c.want)) {
			t.Errorf("%s: %+v, %v, want %s", name, set, err, c.want)
		}
	}
}

// TestIndexDecides: of two files with the same tensor the index says which one counts; files that it does not name are not read.
func TestIndexDecides(t *testing.T) {
	tensor := []phalanx.TensorInfo{{Name: "x", DType: "u8", Shape: []int{2}}}
	folder := files{
		"a.safetensors":       write(t, tensor, nil),
		"b.safetensors":       write(t, append(tensor, phalanx.TensorInfo{Name: "y", DType: "u8"}), nil),
		"broken.safetensors":  nil,
		safetensors.IndexName: []byte(`{"metadata":{"total_size":2.5},"weight_map":{"y":"b.safetensors","x":"a.safetensors"},"more":[1]}`),
	}
	set, err := safetensors.OpenFolder(t.Context(), folder)
	if err != nil || len(set.Tensors) != 2 || set.Tensors[0].Pieces[0].File != "a.safetensors" {
		t.Fatalf("%+v, %v", set, err)
	}
	delete(folder, "b.safetensors")
	sub := maps.Clone(folder)
	sub["sub/b.safetensors"] = write(t, []phalanx.TensorInfo{{Name: "y", DType: "u8"}}, nil)
	sub[safetensors.IndexName] = safetensors.Index{WeightMap: map[string]string{"y": "sub/b.safetensors", "x": "a.safetensors"}}.Encode()
	if set, err := safetensors.OpenFolder(t.Context(), sub); err != nil || set.Tensors[1].Pieces[0].File != "sub/b.safetensors" {
		t.Fatalf("%+v, %v", set, err)
	}
}

func TestLayoutRefuses(t *testing.T) {
	for want, infos := range map[string][]phalanx.TensorInfo{
		"is there twice":                 {{Name: "a", DType: "u8"}, {Name: "a", DType: "f32"}},
		"valid UTF-8, not empty and not": {{Name: "", DType: "u8"}},
		"not __metadata__; rename it":    {{Name: "__metadata__", DType: "u8"}},
		`"a\xff": a name in a`:           {{Name: "a\xff", DType: "u8"}},
		"no element type for c128":       {{Name: "a", DType: "c128"}},
		`unknown dtype "f7"`:             {{Name: "a", DType: "f7"}},
		"negative dimension":             {{Name: "a", DType: "u8", Shape: []int{-1}}},
		"more elements than":             {{Name: "a", DType: "u8", Shape: []int{1 << 40, 1 << 40}}},
		"more bytes than a file":         manyLarge(),
	} {
		if f, err := safetensors.Layout(infos, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v, %v, want %s", f, err, want)
		}
	}
	if _, err := safetensors.Layout(nil, map[string]string{"x": strings.Repeat("y", safetensors.MaxHeader)}); err == nil || !strings.Contains(err.Error(), "write several files") {
		t.Error(err)
	}
	if _, err := safetensors.Layout(nil, map[string]string{"x": "\xff"}); err == nil {
		t.Error("metadata that is no UTF-8")
	}
}

func manyLarge() (infos []phalanx.TensorInfo) {
	for i := range 8 {
		infos = append(infos, phalanx.TensorInfo{Name: fmt.Sprint(i), DType: "u8", Shape: []int{1 << 59}})
	}
	return infos
}

// TestTooManyTensors: a header of short entries is refused before each of them costs its reader many times its bytes.
func TestTooManyTensors(t *testing.T) {
	var header strings.Builder
	const most = 1 << 18
	header.WriteByte('{')
	for i := range most + 1 {
		if i > 0 {
			header.WriteByte(',')
		}
		fmt.Fprintf(&header, `"%d":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}`, i)
	}
	header.WriteByte('}')
	content := file(header.String(), 0)
	if f, err := safetensors.Read(bytes.NewReader(content), int64(len(content))); !errors.Is(err, safetensors.ErrTooMany) || !strings.Contains(err.Error(), "more than 262144 tensors") {
		t.Errorf("%v, %v", f != nil, err)
	}
}

// TestMemoryFollowsTheHeader: the most tensors that are read, each of as few bytes as can be.
func TestMemoryFollowsTheHeader(t *testing.T) {
	var header strings.Builder
	header.WriteByte('{')
	for i := range 1 << 18 {
		if i > 0 {
			header.WriteByte(',')
		}
		fmt.Fprintf(&header, `"%d":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}`, i)
	}
	header.WriteByte('}')
	content := file(header.String(), 0)
	debug.FreeOSMemory()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	before, most := m.HeapInuse, m.HeapInuse
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			runtime.ReadMemStats(&m)
			most = max(most, m.HeapInuse)
			select {
			case <-stop:
				return
			case <-time.After(time.Millisecond):
			}
		}
	}()
	f, err := safetensors.Read(bytes.NewReader(content), int64(len(content)))
	close(stop)
	<-stopped
	if err != nil || len(f.Tensors) != 1<<18 {
		t.Fatal(err)
	}
	if took := most - before; took > 64<<20+16*uint64(len(content)) {
		t.Errorf("%d bytes took %d MiB", len(content), took>>20)
	} else {
		t.Logf("%d bytes took %d MiB", len(content), took>>20)
	}
}
