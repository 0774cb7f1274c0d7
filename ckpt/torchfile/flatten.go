// SPDX-License-Identifier: Apache-2.0

package torchfile

import (
	"fmt"
	"math/big"
	"slices"
	"strconv"
	"strings"

	"phalanx/ckpt/pickle"
)

// What a value is called that no key or place leads to.
const (
	RootTensor = "tensor"
	RootObject = "object"
)

// containers are classes that are dicts to everybody who reads them.
var containers = []pickle.Name{{Module: "collections", Name: "defaultdict"}, {Module: "collections", Name: "Counter"}}

// flattener gives names to nested values.
type flattener struct {
	file  *File
	whole map[*pickle.List]bool // lists that are one object
	named map[string][]any
	room  int64 // bytes that names and paths may still take
}

// Names repeat the keys that lead to a value, and a pickle says a key once. So their memory is bounded by the pickle's size:
// least for any file, and so much for each byte of it.
const (
	leastNames   = 64 << 20
	namesPerByte = 16
	leafBytes    = 256 // what a tensor or object takes beside its name and path
)

// flatten turns the saved value into tensors and objects. Recursion is bounded by the limits that the value was decoded with.
func (f *File) flatten(value any, length int64) error {
	w := &flattener{file: f, whole: map[*pickle.List]bool{}, named: map[string][]any{}, room: leastNames + namesPerByte*length}
	return w.visit(nil, value)
}

func (w *flattener) visit(path []any, value any) error {
	if pairs, ok := dictOf(value); ok {
		last := make(map[any]int, len(pairs)) // of two equal keys the last one counts
		for i, p := range pairs {
			last[p.Key] = i
		}
		for i, p := range pairs {
			if last[p.Key] != i {
				continue
			}
			key, _ := keyText(p.Key)
			if err := w.visit(append(slices.Clip(path), key), p.Value); err != nil {
				return err
			}
		}
		return nil
	}
	if items, ok := listOf(value); ok && !w.isWhole(value) {
		for i, item := range items {
			if err := w.visit(append(slices.Clip(path), i), item); err != nil {
				return err
			}
		}
		return nil
	}
	return w.leaf(path, value)
}

func (w *flattener) leaf(path []any, value any) error {
	parts := make([]string, len(path))
	w.room -= leafBytes
	for i, p := range path {
		parts[i] = fmt.Sprint(p)
		w.room -= int64(len(parts[i])) + 1 + 16
	}
	if w.room < 0 {
		return fmt.Errorf("%w: the names of its values take far more bytes than the file, up to %.200q; give nested dicts shorter keys and save again", ErrUnsupported, parts[len(parts)-1:])
	}
	name := strings.Join(parts, ".")
	isTensor := pickle.IsTensor(value)
	if len(path) == 0 && isTensor {
		name = RootTensor
	} else if len(path) == 0 {
		name = RootObject
	}
	if other, used := w.named[name]; used {
		return fmt.Errorf("%w: the values at %q and at %q would both be called %.200q; rename one and save again", ErrUnsupported, other, path, name)
	}
	w.named[name] = path
	if !isTensor {
		w.file.Objects = append(w.file.Objects, Object{Name: name, Path: path, Value: value})
		return nil
	}
	t, err := pickle.AsTensor(value)
	if err != nil {
		return fmt.Errorf("%w: tensor %.200q: %w", ErrDamaged, name, err)
	}
	w.file.Tensors = append(w.file.Tensors, Tensor{Name: name, Path: path, Tensor: *t})
	return nil
}

// isWhole reports whether a list or tuple is one object: it holds no tensor, no dict, and no list that is not one object.
func (w *flattener) isWhole(value any) bool {
	list, isList := value.(*pickle.List)
	if whole, known := w.whole[list]; isList && known {
		return whole
	}
	items, _ := listOf(value)
	whole := !slices.ContainsFunc(items, func(item any) bool {
		if _, isDict := dictOf(item); isDict || pickle.IsTensor(item) {
			return true
		}
		_, isList := listOf(item)
		return isList && !w.isWhole(item)
	})
	if isList {
		w.whole[list] = whole
	}
	return whole
}

// listOf returns the items of a list or tuple.
func listOf(value any) ([]any, bool) {
	switch v := value.(type) {
	case *pickle.List:
		return v.Items, true
	case *pickle.Tuple:
		return v.Items, true
	}
	return nil, false
}

// dictOf returns the pairs of a dict of any class, unless it has keys that have no plain text.
func dictOf(value any) ([]pickle.Pair, bool) {
	var pairs []pickle.Pair
	switch v := value.(type) {
	case *pickle.Dict:
		pairs = v.Pairs
	case *pickle.Object:
		if !v.Is("collections", "OrderedDict") && !v.Is("collections", "defaultdict") && !v.Is("collections", "Counter") {
			return nil, false
		}
		pairs = slices.Concat(listed(v.Args), v.Pairs)
	default:
		return nil, false
	}
	return pairs, !slices.ContainsFunc(pairs, func(p pickle.Pair) bool { _, ok := keyText(p.Key); return !ok })
}

// listed returns the pairs that an OrderedDict of Python 2 is made of: a list of lists of two.
func listed(args any) (pairs []pickle.Pair) {
	outer, _ := listOf(args)
	if len(outer) != 1 {
		return nil
	}
	list, _ := listOf(outer[0])
	for _, item := range list {
		pair, _ := listOf(item)
		if len(pair) != 2 {
			return nil
		}
		pairs = append(pairs, pickle.Pair{Key: pair[0], Value: pair[1]})
	}
	return pairs
}

// keyText is Python's str of a key.
func keyText(key any) (string, bool) {
	switch k := key.(type) {
	case string:
		return k, true
	case int64:
		return strconv.FormatInt(k, 10), true
	case *big.Int:
		return bigText(k), true
	case bool:
		if k {
			return "True", true
		}
		return "False", true
	case float64:
		return floatText(k), true
	case nil:
		return "None", true
	}
	return "", false
}
