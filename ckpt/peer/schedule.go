// SPDX-License-Identifier: Apache-2.0

package peer

import (
	"fmt"

	"phalanx"
)

// Range is a run of bytes of one tensor.
type Range struct {
	Tensor int
	Off    int64
	Length int64
}

// Split cuts a layout into ranges of at most chunkBytes, in layout order. Tensors without bytes have none.
func Split(layout []phalanx.TensorInfo, chunkBytes int64) []Range {
	var ranges []Range
	for i, t := range layout {
		for off, size := int64(0), t.Bytes(); off < size; off += chunkBytes {
			ranges = append(ranges, Range{Tensor: i, Off: off, Length: min(chunkBytes, size-off)})
		}
	}
	return ranges
}

// rangeState says where a range is.
type rangeState uint8

const (
	waiting rangeState = iota // in a donor's run, or given back; Next hands it out
	reading                   // one or more donors read it; Done ends it, Fail of its last reader puts it back
	done                      // somebody's answer was taken; final
)

// Schedule decides which donor reads which range. It is a pure state machine: no goroutine, no clock; calls to it must not
// overlap. Donors and ranges are named by their indexes.
type Schedule struct {
	ranges  []Range
	state   []rangeState
	readers [][]int // donors that read a range now, in the order in which they began
	runs    []run   // each donor's own ranges that wait
	back    []int   // ranges that were given back, oldest first
	failed  []bool
	left    int   // ranges that are not done
	order   []int // ranges that are being read, oldest first; what a second reader takes
}

// run is a contiguous run of range indexes, [first, end).
type run struct{ first, end int }

// NewSchedule deals ranges to donors in contiguous runs of about equal bytes.
func NewSchedule(ranges []Range, donors int) *Schedule {
	s := &Schedule{
		ranges: ranges, state: make([]rangeState, len(ranges)), readers: make([][]int, len(ranges)),
		runs: make([]run, donors), failed: make([]bool, donors), left: len(ranges),
	}
	var total, at int64
	for _, r := range ranges {
		total += r.Length
	}
	first := 0
	for d := range donors {
		end := first
		// Compared as a fraction of the total without multiplying bytes: they may be large.
		for end < len(ranges) && (d == donors-1 || at < total/int64(donors)*int64(d+1)) {
			at += ranges[end].Length
			end++
		}
		s.runs[d] = run{first, end}
		first = end
	}
	return s
}

// Finished reports whether every range is done.
func (s *Schedule) Finished() bool { return s.left == 0 }

// Range returns a range by its index.
func (s *Schedule) Range(i int) Range { return s.ranges[i] }

// Next gives a donor a range to read: its own next one, one that was given back, the last of the longest run, or one that
// another donor has been reading longest. ok is false when there is nothing for it to do now: it failed, all is done, or
// it reads whatever is left already. More may come when another donor fails.
func (s *Schedule) Next(donor int) (i int, ok bool) {
	if s.failed[donor] {
		return 0, false
	}
	if r := &s.runs[donor]; r.first < r.end {
		r.first++
		return s.begin(donor, r.first-1), true
	}
	if len(s.back) > 0 {
		i, s.back = s.back[0], s.back[1:]
		return s.begin(donor, i), true
	}
	longest := 0
	for d, r := range s.runs {
		if r.end-r.first > s.runs[longest].end-s.runs[longest].first {
			longest = d
		}
	}
	if r := &s.runs[longest]; r.first < r.end {
		r.end--
		return s.begin(donor, r.end), true
	}
	return s.second(donor)
}

func (s *Schedule) begin(donor, i int) int {
	s.state[i] = reading
	s.readers[i] = append(s.readers[i], donor)
	s.order = append(s.order, i)
	return i
}

// second gives a donor the range that another has been reading longest. At most two donors read a range: a third would cost
// more than it could win.
func (s *Schedule) second(donor int) (int, bool) {
	for _, i := range s.order {
		if len(s.readers[i]) == 1 && s.readers[i][0] != donor {
			s.readers[i] = append(s.readers[i], donor)
			return i, true
		}
	}
	return 0, false
}

// Done says that a donor has the bytes of a range. It reports whether they are wanted: false when another was first, or
// when the donor was not asked. Only after true may they be written. others lists the donors whose reading is now useless.
func (s *Schedule) Done(donor, i int) (wanted bool, others []int) {
	if s.state[i] != reading || !s.drop(donor, i) {
		return false, nil
	}
	others = s.readers[i]
	s.readers[i] = nil
	s.state[i] = done
	s.left--
	s.forget(i)
	return true, others
}

// Fail takes a donor out: what it reads is given back, unless another reads it too, and its run is dealt out by Next.
func (s *Schedule) Fail(donor int) {
	s.failed[donor] = true
	for i := range s.ranges {
		if s.state[i] == reading && s.drop(donor, i) && len(s.readers[i]) == 0 {
			s.state[i] = waiting
			s.back = append(s.back, i)
			s.forget(i)
		}
	}
}

// drop takes a donor off a range and reports whether it was on it.
func (s *Schedule) drop(donor, i int) bool {
	for k, d := range s.readers[i] {
		if d == donor {
			s.readers[i] = append(append([]int{}, s.readers[i][:k]...), s.readers[i][k+1:]...)
			return true
		}
	}
	return false
}

// forget takes a range off the list of those that are being read.
func (s *Schedule) forget(i int) {
	for k, j := range s.order {
		if j == i {
			s.order = append(s.order[:k], s.order[k+1:]...)
			return
		}
	}
}

// Alive is the number of donors that have not failed.
func (s *Schedule) Alive() int {
	n := 0
	for _, failed := range s.failed {
		if !failed {
			n++
		}
	}
	return n
}

func (r Range) String() string {
	return fmt.Sprintf("bytes [%d, %d) of tensor %d", r.Off, r.Off+r.Length, r.Tensor)
}

// Reads reports whether a donor reads a range whose bytes are still wanted.
func (s *Schedule) Reads(donor, i int) bool {
	for _, d := range s.readers[i] {
		if d == donor {
			return true
		}
	}
	return false
}
