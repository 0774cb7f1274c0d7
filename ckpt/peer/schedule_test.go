// SPDX-License-Identifier: Apache-2.0

package peer

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"phalanx"
)

func TestSplitCoversTheLayout(t *testing.T) {
	layout := []phalanx.TensorInfo{{Name: "a", DType: "f32", Shape: []int{10}}, {Name: "e", DType: "f32", Shape: []int{0}}, {Name: "b", DType: "u8", Shape: []int{32}}}
	got := Split(layout, 16)
	want := []Range{{0, 0, 16}, {0, 16, 16}, {0, 32, 8}, {2, 0, 16}, {2, 16, 16}}
	if !slices.Equal(got, want) {
		t.Fatal(got)
	}
}

// TestScheduleGivesEveryRangeOnce drives the schedule with donors that answer in any order, fail at any time and answer
// after they failed: every range is wanted exactly once as long as a donor lives, and nothing gets stuck.
func TestScheduleGivesEveryRangeOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(0, 30).Draw(t, "ranges")
		donors := rapid.IntRange(1, 5).Draw(t, "donors")
		ranges := make([]Range, n)
		for i := range ranges {
			ranges[i] = Range{Tensor: i, Length: int64(rapid.IntRange(1, 100).Draw(t, "length"))}
		}
		s := NewSchedule(ranges, donors)
		type read struct{ donor, i int }
		var flying []read
		wanted := make([]int, n)
		dead := make([]bool, donors)
		for step := 0; !s.Finished() && s.Alive() > 0; step++ {
			if step > 100*(n+1)*donors {
				t.Fatal("stuck")
			}
			donor := rapid.IntRange(0, donors-1).Draw(t, "donor")
			switch action := rapid.IntRange(0, 20).Draw(t, "action"); {
			case action == 0 && s.Alive() > 1:
				s.Fail(donor)
				dead[donor] = true
			case action < 10:
				i, ok := s.Next(donor)
				if ok {
					if dead[donor] {
						t.Fatalf("dead donor %d was asked", donor)
					}
					flying = append(flying, read{donor, i})
				} else if len(flying) == 0 && !dead[donor] {
					t.Fatal("nobody reads, something is left, and a living donor gets nothing")
				}
			case len(flying) > 0:
				k := rapid.IntRange(0, len(flying)-1).Draw(t, "k")
				r := flying[k]
				flying = slices.Delete(flying, k, k+1)
				expected := s.Reads(r.donor, r.i)
				got, others := s.Done(r.donor, r.i)
				if got != expected || got && dead[r.donor] || slices.Contains(others, r.donor) {
					t.Fatalf("donor %d answered %d: wanted %v, others %v", r.donor, r.i, got, others)
				}
				if got {
					wanted[r.i]++
				}
			}
		}
		for i, k := range wanted {
			if k != 1 {
				t.Fatalf("range %d was wanted %d times", i, k)
			}
		}
	})
}

func TestScheduleDealsEvenly(t *testing.T) {
	ranges := Split([]phalanx.TensorInfo{{Name: "a", DType: "u8", Shape: []int{100}}}, 1)
	s := NewSchedule(ranges, 4)
	for d, r := range s.runs {
		if r.end-r.first != 25 {
			t.Fatalf("donor %d begins with %d of 100 ranges", d, r.end-r.first)
		}
	}
	// Donor 0 does nothing, the others do its work from its end.
	count := 0
	for !s.Finished() {
		d := 1 + count%3
		i, ok := s.Next(d)
		if !ok {
			t.Fatal("idle with work left")
		}
		s.Done(d, i)
		count++
	}
	if count != 100 {
		t.Fatalf("%d reads for 100 ranges", count)
	}
}
