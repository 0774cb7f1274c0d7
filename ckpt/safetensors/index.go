// SPDX-License-Identifier: Apache-2.0

package safetensors

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"phalanx"
)

const (
	// FileName is the name of the only file of a model.
	FileName = "model.safetensors"
	// IndexName is the name of the index of a model of several files. It is written after all of them: then a folder without
	// it is one that was not finished.
	IndexName = "model.safetensors.index.json"
	// Suffix is what names of safetensors files end with.
	Suffix = ".safetensors"
	// MaxIndex bounds an index.
	MaxIndex = MaxHeader
)

// ModelName is the name of file i, from 1, of n files that hold whole tensors.
func ModelName(i, n int) string { return fmt.Sprintf("model-%05d-of-%05d"+Suffix, i, n) }

// ShardName is the name of a file of boxes as PyTorch writes it: rank counts from 1, and file i of n is the place of the
// tensors in the model's files.
func ShardName(rank, i, n int) string {
	return fmt.Sprintf("shard-%05d-model-%05d-of-%05d"+Suffix, rank, i, n)
}

// Index is model.safetensors.index.json: which file holds which tensor.
type Index struct {
	// TotalSize is the number of bytes of all tensors. Writers disagree on what they count, so it is for information only.
	TotalSize int64
	// WeightMap has the file of each tensor, relative to the index, with slashes.
	WeightMap map[string]string
}

// Encode gives the file's content; it depends on the index alone.
func (x Index) Encode() []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "{\n  \"metadata\": {\n    \"total_size\": %d\n  },\n  \"weight_map\": {", x.TotalSize)
	for i, name := range slices.Sorted(maps.Keys(x.WeightMap)) {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString("\n    ")
		quote(&b, name)
		b.WriteString(": ")
		quote(&b, x.WeightMap[name])
	}
	b.WriteString("\n  }\n}\n")
	return b.Bytes()
}

// DecodeIndex reads an index. Names of files that leave the folder are refused.
func DecodeIndex(content []byte) (Index, error) {
	var x Index
	if len(content) > MaxIndex {
		return x, fmt.Errorf("%w: %s has %d bytes, more than the limit of %d", ErrDamaged, IndexName, len(content), MaxIndex)
	}
	w, err := newWalker(content, IndexName+": byte", 0)
	if err != nil {
		return x, err
	}
	err = w.object(func(key string) error {
		switch key {
		case "weight_map":
			x.WeightMap = map[string]string{}
			return w.object(func(name string) error {
				file, err := w.text(about{"tensor", name, ""})
				if err == nil && !localFile(file) {
					err = w.fail("tensor %.200q: %.200q is no file of this folder", name, file)
				}
				x.WeightMap[name] = file
				return err
			})
		case "metadata":
			return w.total(&x.TotalSize)
		}
		return w.skip()
	})
	if err == nil {
		err = w.end()
	}
	if err == nil && x.WeightMap == nil {
		err = w.fail("weight_map is missing")
	}
	return x, err
}

// total reads the metadata of an index. A total size that is no whole number is taken for none: some writers put a float
// there, and nothing depends on it.
func (w *walker) total(size *int64) error {
	t, err := w.token()
	if err != nil || t == nil {
		return err
	}
	if t != json.Delim('{') {
		return w.fail("metadata: want an object, found %.60v", t)
	}
	return w.members(func(key string) error {
		if key != "total_size" {
			return w.skip()
		}
		t, err := w.token()
		if n, ok := t.(json.Number); ok {
			if v, err := n.Int64(); err == nil && v >= 0 {
				*size = v
			}
			return err
		}
		if err == nil && t != nil {
			err = w.fail("total_size: want a number, found %.60v", t)
		}
		return err
	})
}

// localFile reports whether a name is a slash path within the folder that ends like a safetensors file.
func localFile(name string) bool {
	return strings.HasSuffix(name, Suffix) && !strings.HasPrefix(name, "/") && !strings.ContainsAny(name, "\\\x00") &&
		path.Clean(name) == name && name != ".." && !strings.HasPrefix(name, "../")
}

// Split deals whole tensors to files, in the order given: the next file begins when the present one would have more than
// maxBytes of tensors. A larger tensor gets a file of its own. It returns places in infos, one list for each file, and one
// empty list when there is no tensor.
func Split(infos []phalanx.TensorInfo, maxBytes int64) [][]int {
	files := [][]int{nil}
	var size int64
	for i, info := range infos {
		n := info.Bytes()
		if last := len(files) - 1; len(files[last]) > 0 && size+n > maxBytes {
			files, size = append(files, nil), 0
		}
		files[len(files)-1] = append(files[len(files)-1], i)
		size += n
	}
	return files
}
