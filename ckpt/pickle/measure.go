// SPDX-License-Identifier: Apache-2.0

package pickle

import (
	"fmt"
	"iter"
	"math"
)

// extent is what a container or object adds up to when shared values are counted each time; kept in the node itself.
type extent struct {
	state     extentState
	depth     int32
	expansion int64
}

type extentState uint8

const (
	unmeasured extentState = iota // not visited yet
	measuring                     // being visited: to meet it again is to stand inside of it
	measured                      // done, the numbers are right
)

// measure walks what can be reached from the value, each node once, and refuses what goes beyond the limits or contains
// itself. Objects of unknown classes are not entered.
func measure(value any, l Limits) error {
	_, _, err := measureValue(value, &l, 0)
	return err
}

// measureValue is called at most Limits.Depth deep.
func measureValue(v any, l *Limits, depth int) (int32, int64, error) {
	var e *extent
	switch v := v.(type) {
	case string:
		return 1, 1 + int64(len(v))/64, nil
	case Bytes:
		return 1, 1 + int64(len(v))/64, nil
	case *Tuple:
		e = &v.extent
	case *List:
		e = &v.extent
	case *Set:
		e = &v.extent
	case *Dict:
		e = &v.extent
	case *PersistentID:
		e = &v.extent
	case *Object:
		e = &v.extent
	default:
		return 1, 1, nil
	}
	switch {
	case e.state == measured:
		return e.depth, e.expansion, nil
	case e.state == measuring:
		return 0, 0, fmt.Errorf("%w: %s contains itself", ErrLimit, Describe(v))
	case depth >= l.Depth:
		return 0, 0, fmt.Errorf("%w: values nest more than %d deep", ErrLimit, l.Depth)
	}
	e.state, e.depth, e.expansion = measuring, 0, 1
	if o, ok := v.(*Object); !ok || o.Known() {
		for child := range children(v) {
			deep, many, err := measureValue(child, l, depth+1)
			if err != nil {
				return 0, 0, err
			}
			e.depth = max(e.depth, deep)
			if e.expansion > math.MaxInt64-many || e.expansion+many > l.Expansion {
				return 0, 0, fmt.Errorf("%w: with shared values written out it has more than %d values", ErrLimit, l.Expansion)
			}
			e.expansion += many
		}
	}
	if e.depth++; int(e.depth) > l.Depth {
		return 0, 0, fmt.Errorf("%w: values nest more than %d deep", ErrLimit, l.Depth)
	}
	e.state = measured
	return e.depth, e.expansion, nil
}

// children are the values in a node, of an object also its class.
func children(v any) iter.Seq[any] {
	return func(yield func(any) bool) {
		switch v := v.(type) {
		case *Tuple:
			all(yield, v.Items)
		case *List:
			all(yield, v.Items)
		case *Set:
			all(yield, v.Items)
		case *Dict:
			allPairs(yield, v.Pairs)
		case *PersistentID:
			yield(v.ID)
		case *Object:
			_ = yield(v.Class) && yield(v.Args) && yield(v.State) && all(yield, v.Items) && allPairs(yield, v.Pairs)
		}
	}
}

func all(yield func(any) bool, items []any) bool {
	for _, item := range items {
		if !yield(item) {
			return false
		}
	}
	return true
}

func allPairs(yield func(any) bool, pairs []Pair) bool {
	for _, p := range pairs {
		if !yield(p.Key) || !yield(p.Value) {
			return false
		}
	}
	return true
}
