// SPDX-License-Identifier: Apache-2.0

package torchfile_test

import (
	"archive/zip"
	"bytes"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io"
	"strings"
	"testing"

	"phalanx/ckpt/pickle"
	"phalanx/ckpt/torchfile"
)

// member is a part of an archive that the tests make.
type member struct {
	name, content string
	method        uint16
	flags         uint16
	wrongSum      bool
}

// pack makes an archive.
func pack(t testing.TB, members ...member) []byte {
	t.Helper()
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	for _, m := range members {
		h := &zip.FileHeader{Name: m.name, Method: m.method, Flags: m.flags, CRC32: crc32.ChecksumIEEE([]byte(m.content)),
			CompressedSize64: uint64(len(m.content)), UncompressedSize64: uint64(len(m.content))}
		if m.wrongSum {
			h.CRC32++
		}
		w, err := z.CreateRaw(h)
		if err == nil {
			_, err = io.WriteString(w, m.content)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// tensorPickle describes one u8 tensor of n elements in storage 0.
func tensorPickle(t testing.TB, n int) string {
	t.Helper()
	text, err := pickle.EncodeTensor("u8", []int{n})
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestRefused(t *testing.T) {
	good := []member{{name: "a/data.pkl", content: tensorPickle(t, 4)}, {name: "a/data/0", content: "abcd"}}
	with := func(more ...member) []byte { return pack(t, append(good[:2:2], more...)...) }
	whole := with()
	open(t, whole)
	for name, c := range map[string]struct {
		content []byte
		is      error
		want    string
	}{
		"empty":             {nil, torchfile.ErrDamaged, "it begins with , a zip archive"},
		"text":              {[]byte("hello, world"), torchfile.ErrDamaged, "it begins with 68 65 6c 6c"},
		"bare pickle":       {[]byte("\x80\x04K\x01."), torchfile.ErrUnsupported, "bare pickle"},
		"legacy":            {[]byte("\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19."), torchfile.ErrUnsupported, "before 1.6"},
		"tar":               {append(make([]byte, 257), "ustar   "...), torchfile.ErrUnsupported, "tar archive"},
		"cut off":           {whole[:len(whole)-1], torchfile.ErrDamaged, "may be cut off"},
		"cut in half":       {whole[:len(whole)/2], torchfile.ErrDamaged, "may be cut off"},
		"no pickle":         {pack(t, member{name: "a/x", content: "y"}), torchfile.ErrUnsupported, "no member data.pkl"},
		"nothing":           {append([]byte("PK\x03\x04"), pack(t)...), torchfile.ErrUnsupported, "no member data.pkl"},
		"two folders":       {with(member{name: "b/data/1"}), torchfile.ErrDamaged, `"b/data/1" is not in the folder "a"`},
		"no folder":         {with(member{name: "x"}), torchfile.ErrDamaged, `"x" is not in the folder`},
		"twice":             {with(good[1]), torchfile.ErrDamaged, `two members "a/data/0"`},
		"encrypted":         {with(member{name: "a/x", flags: 1}), torchfile.ErrUnsupported, "encrypted"},
		"deflated":          {with(member{name: "a/x", method: zip.Deflate}), torchfile.ErrUnsupported, "compressed (method 8)"},
		"TorchScript":       {with(member{name: "a/constants.pkl"}), torchfile.ErrUnsupported, "TorchScript"},
		"byte order":        {with(member{name: "a/byteorder", content: "middle"}), torchfile.ErrDamaged, `byte order is "middle"`},
		"long byte order":   {with(member{name: "a/byteorder", content: strings.Repeat("little", 20)}), torchfile.ErrDamaged, "more than the limit of 64"},
		"sum of the pickle": {pack(t, member{name: "a/data.pkl", content: tensorPickle(t, 4), wrongSum: true}, good[1]), torchfile.ErrDamaged, "CRC-32"},
		"no storage":        {pack(t, good[0]), torchfile.ErrDamaged, `no member "a/data/0"`},
		"short storage":     {pack(t, good[0], member{name: "a/data/0", content: "abc"}), torchfile.ErrDamaged, "its storage has 4 bytes"},
		"no pickle at all":  {pack(t, member{name: "a/data.pkl", content: "what is this"}), nil, "not a pickle at byte"},
		"runs code":         {pack(t, member{name: "a/data.pkl", content: "\x80\x02cos\nsystem\nX\x02\x00\x00\x00ls\x85R."}), nil, "os.system at byte 2, with which it would run code"},
		"same name": {pack(t, member{name: "a/data.pkl", content: "\x80\x02}(X\x03\x00\x00\x00a.bK\x01X\x01\x00\x00\x00a}X\x01\x00\x00\x00bK\x02su."}), torchfile.ErrUnsupported,
			`would both be called "a.b"`},
		"beyond its storage": {pack(t, member{name: "a/data.pkl", content: strings.Replace(tensorPickle(t, 4), "QK\x00K\x04", "QK\x01K\x04", 1)}, good[1]), torchfile.ErrDamaged, "reaches beyond its storage"},
		"repeats": {pack(t, member{name: "a/data.pkl", content: strings.Replace(tensorPickle(t, 4), "K\x04\x85q\x06K\x01\x85", "\x8a\x05\x00\x00\x00\x00\x01\x85q\x06K\x00\x85", 1)}, good[1]), torchfile.ErrUnsupported,
			"more than 64 times"},
	} {
		f, err := torchfile.Open(bytes.NewReader(c.content), int64(len(c.content)))
		if err == nil || c.is != nil && !errors.Is(err, c.is) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %+v, %v, want %s", name, f, err, c.want)
		}
	}
}

// TestAnotherName: a member whose local header has another name than the directory.
func TestAnotherName(t *testing.T) {
	content := pack(t, member{name: "a/data.pkl", content: tensorPickle(t, 4)}, member{name: "a/data/0", content: "abcd"})
	for _, name := range []string{"a/data/0", "a/data.pkl"} {
		changed := bytes.Clone(content)
		changed[bytes.Index(changed, []byte(name))] ^= 1
		f, err := torchfile.Open(bytes.NewReader(changed), int64(len(changed)))
		if err == nil {
			err = f.WriteTo(io.Discard, &f.Tensors[0])
		}
		if !errors.Is(err, torchfile.ErrDamaged) || !strings.Contains(err.Error(), "another name than the directory") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestUnknownProperty: a tensor with a property that is not known is listed and cannot be read; the others can.
func TestUnknownProperty(t *testing.T) {
	text := pickleOfTwo(t)
	first := strings.Index(text, "tq\x0aR")
	text = text[:first] + "}X\x04\x00\x00\x00zero\x88s" + text[first:]
	f := open(t, pack(t, member{name: "a/data.pkl", content: text}, member{name: "a/data/0", content: "abcd"}, member{name: "a/data/1", content: "efgh"}))
	if err := f.WriteTo(io.Discard, &f.Tensors[0]); !errors.Is(err, torchfile.ErrUnsupported) || !strings.Contains(err.Error(), `tensor "0": elements of the type torch.uint8 with the property "zero" are not supported`) {
		t.Error(err)
	}
	var b bytes.Buffer
	if err := f.WriteTo(&b, &f.Tensors[1]); err != nil || b.String() != "efgh" {
		t.Error(b.String(), err)
	}
}

// TestLongNames: keys that lead to many values are not repeated in names without a bound.
func TestLongNames(t *testing.T) {
	var text strings.Builder
	text.WriteString("\x80\x02}X\x00\x00\x10\x00" + strings.Repeat("k", 1<<20) + "}(")
	for i := range 1000 {
		text.WriteString("M" + string([]byte{byte(i), byte(i >> 8)}) + "N")
	}
	text.WriteString("us.")
	content := pack(t, member{name: "a/data.pkl", content: text.String()})
	if f, err := torchfile.Open(bytes.NewReader(content), int64(len(content))); !errors.Is(err, torchfile.ErrUnsupported) || !strings.Contains(err.Error(), "far more bytes than the file") {
		t.Errorf("%v, %v", f != nil, err)
	}
}

// directory finds the entry of a member in the directory at the end.
func directory(t testing.TB, content []byte, name string) []byte {
	t.Helper()
	i := bytes.LastIndex(content, []byte(name))
	if i < 46 || string(content[i-46:i-42]) != "PK\x01\x02" {
		t.Fatalf("no entry of %s", name)
	}
	return content[i-46:]
}

// TestOverlaps: a directory that gives the same bytes to several members.
func TestOverlaps(t *testing.T) {
	// Storage 0 holds a whole member, with its local header, which the directory has as storage 1.
	inner := pack(t, member{name: "a/data/1", content: "efgh"})
	inner = inner[:30+len("a/data/1")+4]
	two := strings.Replace(pickleOfTwo(t), "K\x04tq\x05QK\x00K\x04", "K*tq\x05QK\x00K*", 1) // 42 elements
	content := pack(t, member{name: "a/data.pkl", content: two}, member{name: "a/data/0", content: string(inner)}, member{name: "a/data/1", content: "efgh"})
	f := open(t, content)
	for i := range f.Tensors {
		if err := f.Verify(&f.Tensors[i]); err != nil {
			t.Fatal(err)
		}
	}
	second := directory(t, content, "a/data/1")
	binary.LittleEndian.PutUint32(second[42:], uint32(bytes.Index(content, inner)))
	for _, first := range []int{0, 1} {
		f = open(t, content)
		if err := f.Verify(&f.Tensors[first]); err != nil {
			t.Fatal(err)
		}
		if err := f.WriteTo(io.Discard, &f.Tensors[1-first]); !errors.Is(err, torchfile.ErrDamaged) || !strings.Contains(err.Error(), "share bytes of the file") {
			t.Fatal(err)
		}
	}
	binary.LittleEndian.PutUint32(second[42:], 1) // no header is there
	f = open(t, content)
	if err := f.Verify(&f.Tensors[1]); !errors.Is(err, torchfile.ErrDamaged) || !strings.Contains(err.Error(), "local header") {
		t.Fatal(err)
	}
	for _, at := range []int{20, 24} { // sizes
		binary.LittleEndian.PutUint32(second[at:], 1<<20)
	}
	if f, err := torchfile.Open(bytes.NewReader(content), int64(len(content))); !errors.Is(err, torchfile.ErrDamaged) || !strings.Contains(err.Error(), "more bytes than the file") {
		t.Fatal(f, err)
	}
}

// pickleOfTwo is a list of two tensors in storages 0 and 1.
func pickleOfTwo(t testing.TB) string {
	text := strings.TrimSuffix(strings.TrimPrefix(tensorPickle(t, 4), "\x80\x02"), ".")
	return "\x80\x02](" + text + strings.Replace(text, "X\x01\x00\x00\x000", "X\x01\x00\x00\x001", 1) + "e."
}

// TestEveryFlip: a byte of the file that is changed is noticed, or changes no tensor.
func TestEveryFlip(t *testing.T) {
	content := load(t, "little.pt")
	read := func(content []byte) (all string, err error) {
		f, err := torchfile.Open(bytes.NewReader(content), int64(len(content)))
		if err != nil {
			return "", err
		}
		var b bytes.Buffer
		for i := range f.Tensors {
			b.WriteString(f.Tensors[i].Name)
			if err := f.WriteTo(&b, &f.Tensors[i]); err != nil {
				return "", err
			}
		}
		return b.String(), nil
	}
	want, err := read(content)
	if err != nil {
		t.Fatal(err)
	}
	noticed := 0
	for i := range content {
		content[i] ^= 0x41
		if got, err := read(content); err != nil {
			noticed++
		} else if got != want {
			t.Errorf("byte %d was changed, and the tensors are read as others", i)
		}
		content[i] ^= 0x41
	}
	if noticed < 600 {
		t.Errorf("%d of %d changed bytes were noticed", noticed, len(content))
	}
}

// TestStorageChanged: the checksum of a storage is compared whichever way it is read.
func TestStorageChanged(t *testing.T) {
	for _, name := range []string{"whole", "transposed", "tail", "f8"} {
		content := load(t, "views.pt")
		f := open(t, content)
		tensor := find(t, f, name)
		at, err := f.Locate(tensor)
		if err != nil {
			t.Fatal(err)
		}
		content[at] ^= 1
		for range 2 {
			if err := f.WriteTo(io.Discard, tensor); !errors.Is(err, torchfile.ErrDamaged) || !strings.Contains(err.Error(), "CRC-32") {
				t.Errorf("%s: %v", name, err)
			}
			if err := f.Verify(tensor); !errors.Is(err, torchfile.ErrDamaged) {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
}
