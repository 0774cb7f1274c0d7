// SPDX-License-Identifier: Apache-2.0

package elem

import (
	"encoding/binary"
	"fmt"
	"math"
	"strconv"

	"phalanx"
)

// Stats says what the numbers of a tensor are like. The zero value is that of no numbers.
type Stats struct {
	// Count is how many numbers there are: an element has one, a complex one two.
	Count int64
	// NaN, Inf and Zero are how many of them are not a number, infinite (of either sign), and zero (of either sign).
	NaN, Inf, Zero int64
	// Min and Max are the least and largest of those that are neither NaN nor infinite; meaningless while Finite is 0. Integers
	// of 64 bits are rounded: MinText and MaxText are exact.
	Min, Max float64

	wide        string // "i64" or "u64" when least and most are those of such integers
	least, most uint64 // as ordered has them

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
		s.wider(dtype, src[:n*size])
		src = src[n*size:]
		s.numbers(x)
	}
	return nil
}

// ordered turns the bits of an integer of 64 bits into a number that is larger for a larger integer, and back.
func ordered(dtype string, bits uint64) uint64 {
	if dtype == "i64" {
		return bits ^ 1<<63
	}
	return bits
}

// wider keeps the least and largest of integers that float64 cannot hold. It comes before they are counted.
func (s *Stats) wider(dtype string, src []byte) {
	switch {
	case s.Count > 0 && dtype != s.wide: // a rounded one was counted before, or is now
		s.wide = ""
		return
	case dtype != "i64" && dtype != "u64":
		return
	case s.Count == 0:
		s.wide, s.least, s.most = dtype, math.MaxUint64, 0
	}
	for ; len(src) >= 8; src = src[8:] {
		v := ordered(dtype, binary.LittleEndian.Uint64(src))
		s.least, s.most = min(s.least, v), max(s.most, v)
	}
}

// MinText is Min as a decimal number, exact for integers; "" while Finite is 0.
func (s *Stats) MinText() string { return s.text(s.Min, s.least) }

// MaxText is Max as a decimal number, exact for integers; "" while Finite is 0.
func (s *Stats) MaxText() string { return s.text(s.Max, s.most) }

func (s *Stats) text(v float64, wide uint64) string {
	switch {
	case s.Finite() == 0:
		return ""
	case s.wide == "i64":
		return strconv.FormatInt(int64(ordered(s.wide, wide)), 10)
	case s.wide == "u64":
		return strconv.FormatUint(wide, 10)
	}
	format := byte('f') // as encoding/json writes them
	if a := math.Abs(v); a != 0 && (a < 1e-6 || a >= 1e21) {
		format = 'e'
	}
	return strconv.FormatFloat(v, format, -1, 64)
}

// Integers reports whether the numbers are integers of 64 bits.
func (s *Stats) Integers() bool { return s.wide != "" }

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
	switch {
	case s.Count == 0:
		s.wide, s.least, s.most = o.wide, o.least, o.most
	case o.Count > 0 && s.wide == o.wide:
		s.least, s.most = min(s.least, o.least), max(s.most, o.most)
	case o.Count > 0: // numbers of several types
		s.wide = ""
	}
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
