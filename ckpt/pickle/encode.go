// SPDX-License-Identifier: Apache-2.0

package pickle

import "fmt"

// Encode writes a value as a pickle of protocol 4 in one frame: the same bytes for the same values, on every machine. It
// takes nil, bool, int, int64, float64, string, Bytes and the nodes of this package but PersistentID. What is shared stays
// shared: strings and globals that are equal, and nodes that are the same pointer, are written once. It fails for other types
// and for values that nest deeper than 128 or contain themselves.
func Encode(value any) ([]byte, error) {
	e := &encoder{uses: map[any]int{}, open: map[any]bool{}, memo: map[any]int{}}
	if err := e.count(value, 0); err != nil {
		return nil, err
	}
	if err := e.value(value); err != nil {
		return nil, err
	}
	return e.w.Finish(), nil
}

type encoder struct {
	w    Writer
	uses map[any]int  // of nodes
	open map[any]bool // what is being counted
	memo map[any]int  // numbers of what was written and is used again
}

// isNode reports whether a value is one that may be shared.
func isNode(v any) bool {
	switch v.(type) {
	case *Tuple, *List, *Dict, *Set, *Object:
		return true
	}
	return false
}

// count finds what is used more than once.
func (e *encoder) count(v any, depth int) error {
	if !isNode(v) {
		return nil
	}
	switch {
	case e.open[v]:
		return fmt.Errorf("pickle: %s contains itself", Describe(v))
	case depth > (Limits{}).withDefaults(0).Depth:
		return fmt.Errorf("pickle: %s nests too deep", Describe(v))
	}
	if e.uses[v]++; e.uses[v] > 1 {
		return nil
	}
	e.open[v] = true
	defer delete(e.open, v)
	for child := range children(v) {
		if err := e.count(child, depth+1); err != nil {
			return err
		}
	}
	return nil
}

// value writes a value, or its number when it was written before.
func (e *encoder) value(v any) error {
	if isNode(v) {
		if n, ok := e.memo[v]; ok {
			e.w.Get(n)
			return nil
		}
	}
	switch v := v.(type) {
	case nil:
		e.w.None()
	case bool:
		e.w.Bool(v)
	case int:
		e.w.Int(int64(v))
	case int64:
		e.w.Int(v)
	case float64:
		e.w.Float(v)
	case string:
		e.w.String(v)
	case Bytes:
		e.w.Bytes(v)
	case *Global:
		e.w.Global(v.Module, v.Name)
	case *Tuple:
		return e.tuple(v)
	case *List:
		e.w.List()
		e.memoize(v)
		return e.group('e', v.Items)
	case *Set:
		return e.set(v)
	case *Dict:
		e.w.Dict()
		e.memoize(v)
		return e.group('u', flat(v.Pairs))
	case *Object:
		return e.object(v)
	default:
		return fmt.Errorf("pickle: a %T cannot be written", v)
	}
	return nil
}

func (e *encoder) values(vs ...any) error {
	for _, v := range vs {
		if err := e.value(v); err != nil {
			return err
		}
	}
	return nil
}

func (e *encoder) tuple(v *Tuple) error {
	if len(v.Items) > 3 {
		e.w.Mark()
	}
	if err := e.values(v.Items...); err != nil {
		return err
	}
	e.w.Tuple(len(v.Items))
	e.memoize(v)
	return nil
}

func (e *encoder) set(v *Set) error {
	if !v.Frozen {
		e.w.b = append(e.w.b, 0x8f)
		e.memoize(v)
		return e.group(0x90, v.Items)
	}
	e.w.Mark()
	if err := e.values(v.Items...); err != nil {
		return err
	}
	e.w.b = append(e.w.b, 0x91)
	e.memoize(v)
	return nil
}

func (e *encoder) object(o *Object) error {
	if err := e.values(o.Class, o.Args); err != nil {
		return err
	}
	if o.New {
		e.w.New()
	} else {
		e.w.Call()
	}
	e.memoize(o)
	if err := e.group('e', o.Items); err != nil {
		return err
	}
	if err := e.group('u', flat(o.Pairs)); err != nil {
		return err
	}
	if !o.HasState {
		return nil
	}
	if err := e.value(o.State); err != nil {
		return err
	}
	e.w.Build()
	return nil
}

func flat(pairs []Pair) []any {
	items := make([]any, 0, 2*len(pairs))
	for _, p := range pairs {
		items = append(items, p.Key, p.Value)
	}
	return items
}

// group adds values to the node on top of the stack, with an opcode for each group of them.
func (e *encoder) group(op byte, items []any) error {
	for len(items) > 0 {
		n := min(len(items), groupSize)
		e.w.Mark()
		if err := e.values(items[:n]...); err != nil {
			return err
		}
		e.w.b = append(e.w.b, op)
		items = items[n:]
	}
	return nil
}

// memoize numbers what was just written, if it is used again.
func (e *encoder) memoize(v any) {
	if e.uses[v] > 1 {
		e.memo[v] = e.w.Memoize()
	}
}
