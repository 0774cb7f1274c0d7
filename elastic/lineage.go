// SPDX-License-Identifier: Apache-2.0

package elastic

import (
	"cmp"
	"slices"

	"phalanx"
)

// OfLineage reports whether a state with this label may be continued: no rewind after its generation went below its step.
func (s *State) OfLineage(l phalanx.Label) bool {
	return !slices.ContainsFunc(s.Rewinds, func(r RewindRecord) bool { return r.abandons(l) })
}

func (r RewindRecord) abandons(l phalanx.Label) bool {
	return l.Generation.Less(r.Generation) && l.Step > r.Source
}

// recordRewind adds a rewind to the records.
//
// An older record whose source is not below the new one's abandons nothing that the new one does not, so it goes: what is
// left is a staircase, on which generation and source rise together, and no label is judged otherwise for it. Only a job
// that is rewound to ever later steps still gets longer, and beyond MaxRewinds two neighbours become one that abandons what
// either did and what the older branch made up to the younger source. That errs on the side of abandoning: a label that was
// refused once is refused for ever. It may never hide the floor (which is at or above the newest source) nor a checkpoint
// that the state names; of 127 pairs those can hold apart no more than MaxPublished.
func (s *State) recordRewind(r RewindRecord) {
	s.Rewinds = slices.DeleteFunc(s.Rewinds, func(old RewindRecord) bool { return old.Source >= r.Source })
	s.Rewinds = append(s.Rewinds, r)
	for i := 0; len(s.Rewinds) > MaxRewinds && i+1 < len(s.Rewinds); i++ {
		merged := s.Rewinds[i+1]
		merged.Source = s.Rewinds[i].Source
		if slices.ContainsFunc(s.Published, func(p Published) bool {
			return len(p.Labels) > 0 && merged.abandons(p.Labels[0]) && s.OfLineage(p.Labels[0])
		}) {
			continue
		}
		s.Rewinds[i+1] = merged
		s.Rewinds = slices.Delete(s.Rewinds, i, i+1)
	}
}

// forget drops the members that went longest ago, beyond as many as live and at least MinGone. A host that comes under a
// new name each time would fill the state otherwise. What is quarantined is kept until that is lifted, and what the source
// of the floor names while it does.
//
// A life that is forgotten fences itself when it reads so (see Machine), and its daemon counts lives in a file of its own:
// only who loses that file, and comes back after all these others have gone, counts from 1 again.
func (s *State) forget() {
	var gone []Member
	for _, m := range s.Members {
		if m.State == Gone && !m.Quarantine && !slices.Contains(s.Source.Holders, m.Member) {
			gone = append(gone, m)
		}
	}
	excess := len(gone) - max(MinGone, len(s.Members)-len(gone))
	if excess <= 0 {
		return
	}
	slices.SortStableFunc(gone, func(a, b Member) int { return cmp.Compare(a.Went, b.Went) })
	dropped := make(map[phalanx.MemberID]bool, excess)
	for _, m := range gone[:excess] {
		dropped[m.Member] = true
	}
	s.Members = slices.DeleteFunc(s.Members, func(m Member) bool { return dropped[m.Member] })
}
