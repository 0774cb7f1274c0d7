// SPDX-License-Identifier: Apache-2.0

package pickle

import (
	"encoding/binary"
	"fmt"
	"math"
)

// Encode writes a value as a pickle of protocol 4 in one frame: the same bytes for the same values, on every machine. It
// takes nil, bool, int, int64, float64, string, Bytes and the nodes of this package. What is shared stays shared: strings and
// globals that are equal, and nodes that are the same pointer, are written once. It fails for other types and for values
// that nest deeper than 128 or contain themselves.
func Encode(value any) ([]byte, error) {
	w := &encoder{uses: map[any]int{}, memo: map[any]int{}}
	if err := w.count(value, 0); err != nil {
		return nil, err
	}
	if err := w.value(value); err != nil {
		return nil, err
	}
	b := make([]byte, 0, len(w.b)+12)
	b = append(b, 0x80, 4, 0x95)
	b = binary.LittleEndian.AppendUint64(b, uint64(len(w.b)+1))
	return append(append(b, w.b...), '.'), nil
}

type encoder struct {
	b    []byte
	uses map[any]int // of what may be shared, by its key
	memo map[any]int // numbers of what was written and is used again
}

// shareKey is what two values have in common when one of them is enough: text, a global's name, or a node itself.
func shareKey(v any) any {
	switch v := v.(type) {
	case string:
		return v
	case *Global:
		return Name{v.Module, v.Name}
	case *Tuple:
		if len(v.Items) > 0 {
			return v
		}
	case *List, *Dict, *Set, *Object:
		return v
	}
	return nil
}

// count finds what is used more than once.
func (w *encoder) count(v any, depth int) error {
	if depth > (Limits{}).withDefaults(0).Depth {
		return fmt.Errorf("pickle: %s nests too deep, or contains itself", Describe(v))
	}
	key := shareKey(v)
	if key != nil {
		if w.uses[key]++; w.uses[key] > 1 {
			return nil
		}
	}
	if o, ok := v.(*Object); ok {
		if err := w.count(o.Class, depth+1); err != nil {
			return err
		}
		for _, part := range []any{o.Args, o.State} {
			if err := w.count(part, depth+1); err != nil {
				return err
			}
		}
		if err := each(func(v any) error { return w.count(v, depth+1) }, o.Items); err != nil {
			return err
		}
		return eachPair(func(v any) error { return w.count(v, depth+1) }, o.Pairs)
	}
	if g, ok := v.(*Global); ok {
		w.uses[g.Module]++
		w.uses[g.Name]++
		return nil
	}
	if _, children := inside(v); children != nil {
		return children(func(child any) error { return w.count(child, depth+1) })
	}
	return nil
}

// value writes a value, or its number when it was written before.
func (w *encoder) value(v any) error {
	if key := shareKey(v); key != nil {
		if n, ok := w.memo[key]; ok {
			w.get(n)
			return nil
		}
	}
	switch v := v.(type) {
	case nil:
		w.b = append(w.b, 'N')
	case bool:
		w.b = append(w.b, map[bool]byte{true: 0x88, false: 0x89}[v])
	case int:
		w.b = appendInt(w.b, int64(v))
	case int64:
		w.b = appendInt(w.b, v)
	case float64:
		w.b = binary.BigEndian.AppendUint64(append(w.b, 'G'), math.Float64bits(v))
	case string:
		w.text(0x8c, 'X', 0x8d, v)
		w.memoize(v)
	case Bytes:
		w.text('C', 'B', 0x8e, string(v))
	case *Global:
		if err := w.values(v.Module, v.Name); err != nil {
			return err
		}
		w.b = append(w.b, 0x93)
		w.memoize(v)
	case *Tuple:
		return w.tuple(v)
	case *List:
		w.b = append(w.b, ']')
		w.memoize(v)
		return w.group('e', v.Items)
	case *Set:
		if v.Frozen {
			w.b = append(w.b, '(')
			if err := w.values(v.Items...); err != nil {
				return err
			}
			w.b = append(w.b, 0x91)
			w.memoize(v)
			return nil
		}
		w.b = append(w.b, 0x8f)
		w.memoize(v)
		return w.group(0x90, v.Items)
	case *Dict:
		w.b = append(w.b, '}')
		w.memoize(v)
		return w.group('u', flat(v.Pairs))
	case *Object:
		return w.object(v)
	default:
		return fmt.Errorf("pickle: a %T cannot be written", v)
	}
	return nil
}

func (w *encoder) values(vs ...any) error {
	for _, v := range vs {
		if err := w.value(v); err != nil {
			return err
		}
	}
	return nil
}

func (w *encoder) tuple(v *Tuple) error {
	switch {
	case len(v.Items) == 0:
		w.b = append(w.b, ')')
		return nil
	case len(v.Items) > 3:
		w.b = append(w.b, '(')
	}
	if err := w.values(v.Items...); err != nil {
		return err
	}
	w.b = append(w.b, tupleOf(len(v.Items))...)
	w.memoize(v)
	return nil
}

func (w *encoder) object(o *Object) error {
	if err := w.values(o.Class, o.Args); err != nil {
		return err
	}
	if o.New {
		w.b = append(w.b, 0x81)
	} else {
		w.b = append(w.b, 'R')
	}
	w.memoize(o)
	if err := w.group('e', o.Items); err != nil {
		return err
	}
	if err := w.group('u', flat(o.Pairs)); err != nil {
		return err
	}
	if !o.HasState {
		return nil
	}
	if err := w.value(o.State); err != nil {
		return err
	}
	w.b = append(w.b, 'b')
	return nil
}

func flat(pairs []Pair) []any {
	items := make([]any, 0, 2*len(pairs))
	for _, p := range pairs {
		items = append(items, p.Key, p.Value)
	}
	return items
}

// groupSize is how many values one opcode adds at most: as in Python, so that its stack stays small.
const groupSize = 2000

// group adds values to the node on top of the stack.
func (w *encoder) group(op byte, items []any) error {
	for len(items) > 0 {
		n := min(len(items), groupSize)
		w.b = append(w.b, '(')
		if err := w.values(items[:n]...); err != nil {
			return err
		}
		w.b = append(w.b, op)
		items = items[n:]
	}
	return nil
}

// text writes bytes with a length of one, four or eight bytes.
func (w *encoder) text(op1, op4, op8 byte, s string) {
	switch n := len(s); {
	case n < 1<<8:
		w.b = append(w.b, op1, byte(n))
	case int64(n) < 1<<32:
		w.b = binary.LittleEndian.AppendUint32(append(w.b, op4), uint32(n))
	default:
		w.b = binary.LittleEndian.AppendUint64(append(w.b, op8), uint64(n))
	}
	w.b = append(w.b, s...)
}

// memoize numbers what was just written, if it is used again.
func (w *encoder) memoize(v any) {
	if key := shareKey(v); w.uses[key] > 1 {
		w.memo[key] = len(w.memo)
		w.b = append(w.b, 0x94)
	}
}

func (w *encoder) get(n int) {
	if n < 1<<8 {
		w.b = append(w.b, 'h', byte(n))
		return
	}
	w.b = binary.LittleEndian.AppendUint32(append(w.b, 'j'), uint32(n))
}
