// SPDX-License-Identifier: Apache-2.0

package elem

import (
	"fmt"
	"math"

	"phalanx"
)

// Stats says what the numbers of a tensor are like. The zero value is that of no numbers.
type Stats struct {
	// Count is how many numbers there are: an element has one, a complex one two.
	Count int64
	// NaN, Inf and Zero are how many of them are not a number, infinite (of either sign), and zero (of either sign).
	NaN, Inf, Zero int64
	// Min and Max are the least and largest of those that are neither NaN nor infinite; meaningless while Finite is 0.
	Min, Max float64

	sum, rest float64 // of the finite ones; rest is what was rounded away
}

// Finite is how many numbers are neither NaN nor infinite.
func (s *Stats) Finite() int64 { return s.Count - s.NaN - s.Inf }

// Mean is that of the finite numbers, NaN when there is none, and infinite when their sum is beyond the largest float64. Its
// error does not grow with their number.
func (s *Stats) Mean() float64 {
	if math.IsInf(s.sum, 0) {
		return s.sum
	}
	return (s.sum + s.rest) / float64(s.Finite())
}

// Add counts whole elements.
func (s *Stats) Add(dtype string, src []byte) error {
	size := phalanx.DTypeSize(dtype)
	if size == 0 || len(src)%size != 0 {
		return fmt.Errorf("statistics: %d bytes of %q are no whole elements", len(src), dtype)
	}
	var numbers [2 * step]float64
	for len(src) > 0 {
		n := min(step, len(src)/size)
		x := numbers[:n*Values(dtype)]
		if err := Decode(x, dtype, src[:n*size]); err != nil {
			return err
		}
		src = src[n*size:]
		s.numbers(x)
	}
	return nil
}

func (s *Stats) numbers(x []float64) {
	if s.Finite() == 0 {
		s.Min, s.Max = math.Inf(1), math.Inf(-1)
	}
	s.Count += int64(len(x))
	least, most, sum := s.Min, s.Max, 0.0 // few numbers are added plainly, see step
	for _, v := range x {
		switch {
		case math.IsNaN(v):
			s.NaN++
			continue
		case math.IsInf(v, 0):
			s.Inf++
			continue
		case v == 0:
			s.Zero++
		}
		if v < least {
			least = v
		}
		if v > most {
			most = v
		}
		sum += v
	}
	s.Min, s.Max = least, most
	s.addToSum(sum)
}

// addToSum keeps what the sum rounds away (Neumaier).
func (s *Stats) addToSum(v float64) {
	t := s.sum + v
	if math.Abs(s.sum) >= math.Abs(v) {
		s.rest += (s.sum - t) + v
	} else {
		s.rest += (v - t) + s.sum
	}
	s.sum = t
}

// Merge adds the numbers that another one has counted.
func (s *Stats) Merge(o Stats) {
	if o.Finite() > 0 {
		if s.Finite() == 0 {
			s.Min, s.Max = o.Min, o.Max
		}
		s.Min, s.Max = min(s.Min, o.Min), max(s.Max, o.Max)
	}
	s.Count, s.NaN, s.Inf, s.Zero = s.Count+o.Count, s.NaN+o.NaN, s.Inf+o.Inf, s.Zero+o.Zero
	s.addToSum(o.sum)
	s.rest += o.rest
}
