// SPDX-License-Identifier: Apache-2.0

package pickle

import "slices"

// Types of Python itself that older protocols have no opcode for are written as calls. Everybody knows them, so they need no
// place in a policy, and those that have a value of this package become one.

// builtins are the names, in the modules of Python 3 and 2.
var builtins = []string{"set", "frozenset", "bytes", "bytearray", "complex", "slice", "range"}

// isBuiltin reports whether a global is a type of Python itself without any power, or the function that makes bytes of text.
func isBuiltin(module, name string) bool {
	switch module {
	case "builtins", "__builtin__":
		return slices.Contains(builtins, name)
	case "_codecs":
		return name == "encode"
	}
	return false
}

// builtin returns what a call of a builtin makes, as a value of this package, and what it costs in memory; else the object
// itself.
func builtin(o *Object) (any, int64) {
	g := o.Global()
	args, ok := o.Args.(*Tuple)
	if g == nil || !ok || o.New || !isBuiltin(g.Module, g.Name) {
		return o, costObject
	}
	var first any
	if len(args.Items) > 0 {
		first = args.Items[0]
	}
	switch g.Name {
	case "set", "frozenset":
		list, ok := first.(*List)
		if !ok && first != nil || len(args.Items) > 1 {
			return o, costObject
		}
		set := &Set{Frozen: g.Name == "frozenset"}
		if list != nil {
			set.Items = slices.Clone(list.Items)
		}
		return set, costNode + costItem*int64(len(set.Items))
	case "bytes", "bytearray":
		b, ok := first.(Bytes)
		if !ok && first != nil || len(args.Items) > 1 {
			return o, costObject
		}
		return append(Bytes{}, b...), costText + int64(len(b))
	case "encode": // ("text", "latin1"): each character is a byte
		text, ok := first.(string)
		if len(args.Items) != 2 || !ok || args.Items[1] != any("latin1") {
			return o, costObject
		}
		b := make(Bytes, 0, len(text))
		for _, r := range text {
			if r > 0xff {
				return o, costObject
			}
			b = append(b, byte(r))
		}
		return b, costText + int64(len(b))
	}
	return o, costObject
}
