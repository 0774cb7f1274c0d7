// SPDX-License-Identifier: Apache-2.0

package safetensors

import (
	"fmt"
	"maps"
	"slices"

	"phalanx"
)

// Alias says that a tensor has no bytes of its own in the file: it is another name of Of.
type Alias struct{ Name, Of string }

// Tied says which tensors are one. identity has a string for each tensor: tensors with the same one, the same dtype and the
// same shape are tied. It is the digest of the content, or whatever else tells the caller that they are the same, "" for a
// tensor that is to be written in any case. It returns the places in infos of the tensors to be written, ascending, and an
// alias for each of the others, by name. Of tied tensors the one with the least name is written.
func Tied(infos []phalanx.TensorInfo, identity []string) (written []int, aliases []Alias) {
	kept := map[string]int{}
	key := func(i int) string { return fmt.Sprintf("%s %d %s", infos[i].DType, infos[i].Shape, identity[i]) }
	for i := range infos {
		if first, tied := kept[key(i)]; identity[i] != "" && (!tied || infos[i].Name < infos[first].Name) {
			kept[key(i)] = i
		}
	}
	for i, info := range infos {
		if first, tied := kept[key(i)]; tied && identity[i] != "" && first != i {
			aliases = append(aliases, Alias{Name: info.Name, Of: infos[first].Name})
			continue
		}
		written = append(written, i)
	}
	slices.SortFunc(aliases, compareAliases)
	return written, aliases
}

// AliasMetadata adds aliases to a copy of the metadata of a file. A key that is there already is an error.
func AliasMetadata(metadata map[string]string, aliases []Alias) (map[string]string, error) {
	all := maps.Clone(metadata)
	if all == nil {
		all = map[string]string{}
	}
	for _, a := range aliases {
		if old, used := all[a.Name]; used {
			return nil, fmt.Errorf("tensor %.200q is tied to %.200q, but its name is a key of the metadata with the value %.60q; write tied tensors each by itself", a.Name, a.Of, old)
		}
		all[a.Name] = a.Of
	}
	return all, nil
}

// Aliases returns the tied tensors that a file names: entries of its metadata whose key is no tensor of the file and whose
// value is one. They are in the order of their names.
func (f *File) Aliases() []Alias {
	names := make(map[string]struct{}, len(f.Tensors))
	for _, t := range f.Tensors {
		names[t.Name] = struct{}{}
	}
	var aliases []Alias
	for key, value := range f.Metadata {
		_, isTensor := names[key]
		if _, of := names[value]; of && !isTensor {
			aliases = append(aliases, Alias{Name: key, Of: value})
		}
	}
	slices.SortFunc(aliases, compareAliases)
	return aliases
}

func compareAliases(a, b Alias) int {
	if a.Name < b.Name {
		return -1
	}
	return 1
}
