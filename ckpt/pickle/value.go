// SPDX-License-Identifier: Apache-2.0

package pickle

import "strconv"

// Bytes is Python's bytes or bytearray.
type Bytes []byte

// Tuple is Python's tuple.
type Tuple struct {
	Items []any
	extent
}

// List is Python's list.
type List struct {
	Items []any
	extent
}

// Set is Python's set or frozenset. Its items are as they were written: equal ones may be there twice.
type Set struct {
	Items  []any
	Frozen bool
	extent
}

// Dict is Python's dict, in the order of writing. A key may be there twice; for Python the last one counts.
type Dict struct {
	Pairs []Pair
	extent
}

// Pair is a key and its value.
type Pair struct{ Key, Value any }

// Get returns the value of a key that is a string, and whether there is one.
func (d *Dict) Get(key string) (any, bool) {
	for i := len(d.Pairs) - 1; i >= 0; i-- {
		if k, ok := d.Pairs[i].Key.(string); ok && k == key {
			return d.Pairs[i].Value, true
		}
	}
	return nil, false
}

// Global is a class, function or other object of a Python module, by name.
type Global struct {
	Module, Name string
	Offset       int64 // of the opcode that names it first
	Known        bool  // the policy knows it, or it is a plain type of Python itself
}

// String is the name as Python writes it.
func (g *Global) String() string { return g.Module + "." + g.Name }

// Is reports whether it is the known global with this name.
func (g *Global) Is(module, name string) bool {
	return g != nil && g.Known && g.Module == module && g.Name == name
}

// Object is what Python would have made by calling something: a record of the call, and of what was put into the result.
type Object struct {
	Class any   // mostly *Global; *Object when the result of a call would have been called
	Args  any   // *Tuple, or what stood in its place
	New   bool  // made by Class.__new__ (NEWOBJ) instead of by calling Class
	State any   // what BUILD would have set; see HasState
	Items []any // appended
	Pairs []Pair

	HasState bool
	Offset   int64 // of the opcode that makes it
	extent
}

// Global returns the class, nil when it is none by name.
func (o *Object) Global() *Global {
	g, _ := o.Class.(*Global)
	return g
}

// Known reports whether the class is a global that the policy knows.
func (o *Object) Known() bool {
	g := o.Global()
	return g != nil && g.Known
}

// Is reports whether the class is the known global with this name.
func (o *Object) Is(module, name string) bool { return o != nil && o.Global().Is(module, name) }

// PersistentID stands for what a file keeps outside of its pickle: for torch.save, a storage.
type PersistentID struct {
	ID any
	extent
}

// Describe names the kind of a value as Python calls it, for messages: "a tuple", "a torch.Size", "None".
func Describe(v any) string {
	switch v := v.(type) {
	case nil:
		return "None"
	case bool:
		return "a bool"
	case float64:
		return "a float"
	case string:
		if len(v) > 40 {
			v = v[:40] + "…"
		}
		return "the string " + strconv.Quote(v)
	case Bytes:
		return "bytes"
	case *Tuple:
		return "a tuple"
	case *List:
		return "a list"
	case *Dict:
		return "a dict"
	case *Set:
		return "a set"
	case *Global:
		return "the global " + v.String()
	case *Object:
		if g := v.Global(); g != nil {
			return "a " + g.String()
		}
		return "an object"
	case *PersistentID:
		return "a persistent id"
	}
	return "an int"
}
