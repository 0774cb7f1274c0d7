// SPDX-License-Identifier: Apache-2.0

package pickle

import (
	"fmt"
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
	_, err := extentOf(value, l, 0)
	return err
}

// extentOf is called at most Limits.Depth deep.
func extentOf(v any, l Limits, depth int) (extent, error) {
	e, children := inside(v)
	if e == nil {
		return extent{depth: 1, expansion: 1 + length(v)/64}, nil
	}
	switch {
	case e.state == measured:
		return *e, nil
	case e.state == measuring:
		return extent{}, fmt.Errorf("%w: %s contains itself", ErrLimit, Describe(v))
	case depth >= l.Depth:
		return extent{}, fmt.Errorf("%w: values nest more than %d deep", ErrLimit, l.Depth)
	}
	e.state = measuring
	sum := extent{state: measured, expansion: 1}
	err := children(func(child any) error {
		c, err := extentOf(child, l, depth+1)
		if err != nil {
			return err
		}
		sum.depth = max(sum.depth, c.depth)
		if sum.expansion > math.MaxInt64-c.expansion || sum.expansion+c.expansion > l.Expansion {
			return fmt.Errorf("%w: with shared values written out it has more than %d values", ErrLimit, l.Expansion)
		}
		sum.expansion += c.expansion
		return nil
	})
	if err != nil {
		return extent{}, err
	}
	if sum.depth++; int(sum.depth) > l.Depth {
		return extent{}, fmt.Errorf("%w: values nest more than %d deep", ErrLimit, l.Depth)
	}
	*e = sum
	return sum, nil
}

func length(v any) int64 {
	switch v := v.(type) {
	case string:
		return int64(len(v))
	case Bytes:
		return int64(len(v))
	}
	return 0
}

// inside returns where the extent of a node is kept, nil for a value that is no node, and a walk over what it holds.
func inside(v any) (*extent, func(func(any) error) error) {
	switch v := v.(type) {
	case *Tuple:
		return &v.extent, func(visit func(any) error) error { return each(visit, v.Items) }
	case *List:
		return &v.extent, func(visit func(any) error) error { return each(visit, v.Items) }
	case *Set:
		return &v.extent, func(visit func(any) error) error { return each(visit, v.Items) }
	case *Dict:
		return &v.extent, func(visit func(any) error) error { return eachPair(visit, v.Pairs) }
	case *PersistentID:
		return &v.extent, func(visit func(any) error) error { return visit(v.ID) }
	case *Object:
		return &v.extent, func(visit func(any) error) error {
			if !v.Known() {
				return nil
			}
			if err := each(visit, []any{v.Args, v.State}); err != nil {
				return err
			}
			if err := each(visit, v.Items); err != nil {
				return err
			}
			return eachPair(visit, v.Pairs)
		}
	}
	return nil, nil
}

func each(visit func(any) error, items []any) error {
	for _, item := range items {
		if err := visit(item); err != nil {
			return err
		}
	}
	return nil
}

func eachPair(visit func(any) error, pairs []Pair) error {
	for _, p := range pairs {
		if err := visit(p.Key); err != nil {
			return err
		}
		if err := visit(p.Value); err != nil {
			return err
		}
	}
	return nil
}
