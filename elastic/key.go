// SPDX-License-Identifier: Apache-2.0

package elastic

import (
	"encoding/binary"
	"maps"
	"slices"

	"phalanx"
)

// Clone returns a machine that goes on from here by itself. What it has read is shared: states never change.
func (m *Machine) Clone() *Machine {
	c := *m
	c.votes = slices.Clone(m.votes)
	c.early = maps.Clone(m.early)
	return &c
}

// Heard is the newest vote of a rank of the present world that the machine knows, zero when it knows none.
func (m *Machine) Heard(r phalanx.Rank) Vote {
	if int(r) < 0 || int(r) >= len(m.votes) {
		return Vote{}
	}
	return m.votes[r]
}

// Asked is the boundary that the machine was asked to seal at and has not reached, 0 for none.
func (m *Machine) Asked() phalanx.Step {
	if m.ask == nil {
		return 0
	}
	return m.ask.Boundary
}

// AppendKey appends bytes that are equal for two machines which have read the same and go on alike: promises about
// generations that are over, and what a trainer wrote for them, are left out. So are the state that was read, which its
// owner names by a key of its own, and the votes that it has heard (Heard).
func (m *Machine) AppendKey(dst []byte) []byte {
	if m.ended {
		return append(dst, 0xff)
	}
	g := m.log.World.Generation
	flags := byte(m.state) // of 7
	for i, on := range []bool{m.lease, m.formed, m.sat, m.first == g, m.ask != nil} {
		if on {
			flags |= 8 << i
		}
	}
	dst = append(dst, flags, byte(m.seat))
	if m.sealed.Less(g) {
		dst = append(dst, 0)
	} else {
		dst = appendGeneration(append(dst, 1), m.sealed)
	}
	dst = m.vote.appendKey(dst, g)
	dst = m.refused.appendKey(dst, g)
	if m.ask != nil {
		dst = binary.AppendUvarint(dst, uint64(m.ask.Boundary))
	}
	if m.state == LocalAborting {
		dst = appendGeneration(dst, m.leaving)
	}
	if t := &m.trainer; t.Trainer && t.Holds && t.Label.Step >= m.told.Step {
		dst = append(dst, 0)
	} else {
		dst = appendGeneration(binary.AppendUvarint(append(dst, 1), uint64(m.told.Step)), m.told.Generation)
	}
	dst = m.trainer.AppendKey(dst, g)
	dst = binary.AppendUvarint(dst, uint64(len(m.early)))
	for _, r := range slices.Sorted(maps.Keys(m.early)) {
		dst = m.early[r].appendKey(binary.AppendUvarint(dst, uint64(r)), g)
	}
	return dst
}

// AppendKey appends bytes that are equal for trainers which go on alike in generation g and later.
func (t *Trainer) AppendKey(dst []byte, g phalanx.Generation) []byte {
	if !t.Trainer {
		return append(dst, 0)
	}
	flags := byte(1)
	if t.Holds {
		flags |= 2
	}
	moving, gradient := t.moving(), !t.Holds && t.Gradient.Step > 0 || t.Gradient.Step > t.Label.Step
	if moving {
		flags |= 4
	}
	if gradient {
		flags |= 8
	}
	if !t.Healed.OK && t.Healed.Generation == g {
		flags |= 16
	}
	dst = append(dst, flags)
	if t.Holds {
		dst = AppendLabel(dst, t.Label)
	}
	if moving {
		dst = binary.AppendUvarint(dst, uint64(t.Applying))
	}
	if gradient {
		x := t.Gradient
		dst = AppendLabel(dst, phalanx.Label{Step: x.Step, Generation: x.Generation, Digest: x.Digest, Coordinate: x.Coordinate})
	}
	if t.Request.Step <= t.Label.Step {
		return append(dst, 0)
	}
	return t.Request.appendKey(dst, g)
}

// appendKey leaves out a vote of a generation before g.
func (v Vote) appendKey(dst []byte, g phalanx.Generation) []byte {
	if v.Step == 0 || v.Generation.Less(g) {
		return append(dst, 0)
	}
	return v.AppendKey(dst)
}

// AppendKey appends bytes that are equal for equal votes.
func (v Vote) AppendKey(dst []byte) []byte {
	ok := byte(1)
	if v.OK {
		ok = 2
	}
	dst = appendGeneration(append(dst, ok), v.Generation)
	dst = binary.AppendUvarint(dst, uint64(v.Step))
	return appendDigest(dst, v.Digest)
}

// AppendKey appends bytes that are equal for answers that lead to the same.
func (a *Answer) AppendKey(dst []byte) []byte {
	flags := byte(1)
	if a.Unread {
		flags |= 2
	}
	if a.Vote != nil {
		flags |= 4
	}
	dst = binary.AppendUvarint(append(dst, flags), uint64(a.Refused))
	if a.Vote != nil {
		dst = a.Vote.AppendKey(dst)
	}
	t := Trainer{Possession: a.Possession}
	return t.AppendKey(dst, a.Generation)
}

// AppendLabel appends bytes that are equal for equal labels.
func AppendLabel(dst []byte, l phalanx.Label) []byte {
	dst = binary.AppendUvarint(dst, uint64(l.Step))
	dst = appendGeneration(dst, l.Generation)
	return appendDigest(binary.AppendVarint(dst, int64(l.Coordinate)), l.Digest)
}

func appendGeneration(dst []byte, g phalanx.Generation) []byte {
	return binary.AppendUvarint(binary.AppendUvarint(dst, uint64(g.Epoch)), g.Number)
}

func appendDigest(dst []byte, d phalanx.Digest) []byte {
	return binary.AppendUvarint(binary.AppendUvarint(dst, d[0]), d[1])
}

// AppendKey appends bytes that are equal for two states which accept the same commands and are planned for alike. Words,
// times and the number of entries are left out, and of the history all but the evidence of the newest generation. Members
// are named by their place in order. With groups of one ranks are left out, so that two states which differ in the names of
// their members alone have one key in common; they still say whose a vote is as long as a generation lasts, and who stays when
// the world shrinks.
func (s *State) AppendKey(dst []byte, order []phalanx.MemberID) []byte {
	dst = s.AppendView(dst, order)
	dst = append(dst, byte(s.Phase))
	if s.Halt != nil {
		dst = append(append(dst, s.Halt.Kind...), 0)
	}
	dst = binary.AppendUvarint(dst, uint64(s.Policy.Want))
	dst = binary.AppendUvarint(dst, uint64(s.Policy.Min))
	dst = binary.AppendUvarint(dst, uint64(s.Branch))
	for _, id := range order {
		m := s.Member(id)
		if m == nil {
			dst = append(dst, 0xff)
			continue
		}
		flags := byte(m.State)
		if m.Quarantine {
			flags |= 16
		}
		if m.Drained {
			flags |= 32
		}
		if m.Pin != phalanx.AnyPlace {
			flags |= 64
			dst = binary.AppendUvarint(dst, uint64(m.Pin))
		}
		dst = binary.AppendVarint(binary.AppendUvarint(append(dst, flags), uint64(m.Incarnation)), int64(m.Coordinate))
	}
	dst = binary.AppendUvarint(dst, uint64(len(s.Rewinds)))
	for _, r := range s.Rewinds {
		dst = appendGeneration(binary.AppendUvarint(dst, uint64(r.Source)), r.Generation)
	}
	dst = binary.AppendUvarint(dst, uint64(len(s.Published)))
	for _, p := range s.Published {
		dst = binary.AppendUvarint(dst, p.Commit)
		for _, l := range p.Labels {
			dst = AppendLabel(dst, l)
		}
	}
	for _, r := range []*Reached{s.Levels.Local, s.Levels.Memory} {
		if r == nil {
			dst = append(dst, 0)
			continue
		}
		dst = appendGeneration(binary.AppendUvarint(append(dst, 1), uint64(r.Step)), r.Generation)
	}
	if s.Kill != nil {
		dst = binary.AppendUvarint(binary.AppendUvarint(append(dst, 1), uint64(s.Kill.Step)), uint64(s.Kill.Slot))
	} else {
		dst = append(dst, 0)
	}
	if n := len(s.Transitions); n > 0 {
		dst = AppendEvidence(dst, s.Transitions[n-1].Evidence, order)
	}
	return dst
}

// AppendView appends bytes that are equal for two states which a member's own machine takes alike.
func (s *State) AppendView(dst []byte, order []phalanx.MemberID) []byte {
	phase := byte(0)
	if s.Phase == Halted || s.Phase == Finished {
		phase = byte(s.Phase)
	}
	if s.ended() {
		phase |= 16
	}
	dst = appendGeneration(append(dst, phase), s.World.Generation)
	for _, id := range order {
		flags := byte(0)
		m, seat := s.Member(id), s.World.SeatOf(id)
		if m != nil {
			flags |= 1
			if m.State == Gone {
				flags |= 2
			}
			dst = binary.AppendUvarint(dst, uint64(m.Incarnation))
		}
		if slices.Contains(s.Source.Holders, id) {
			flags |= 4
		}
		if seat == nil {
			dst = append(dst, flags)
			continue
		}
		dst = append(dst, flags|8)
		dst = binary.AppendUvarint(dst, uint64(seat.Incarnation))
		if s.World.GroupSize > 1 {
			dst = binary.AppendUvarint(dst, uint64(seat.Rank))
		}
	}
	dst = append(append(dst, s.Source.Kind...), 0)
	dst = binary.AppendUvarint(dst, s.Source.Commit)
	dst = binary.AppendUvarint(dst, uint64(s.Floor.Step))
	for _, l := range s.Floor.Labels {
		dst = AppendLabel(dst, l)
	}
	return dst
}

// AppendEvidence appends which kinds of evidence are known about whom, whatever their order, words and times.
func AppendEvidence(dst []byte, evidence []phalanx.Evidence, order []phalanx.MemberID) []byte {
	for _, id := range order {
		start := len(dst)
		for _, e := range evidence {
			if e.About.Member == id {
				dst = append(dst, kindKey(e.Kind), byte(e.Step))
			}
		}
		pairs := dst[start:]
		for i := 2; i < len(pairs); i += 2 { // a few: insertion keeps them sorted
			for j := i; j > 0 && (pairs[j] < pairs[j-2] || pairs[j] == pairs[j-2] && pairs[j+1] < pairs[j-1]); j -= 2 {
				pairs[j], pairs[j-2] = pairs[j-2], pairs[j]
				pairs[j+1], pairs[j-1] = pairs[j-1], pairs[j+1]
			}
		}
		n := start
		for i := start; i < len(dst); i += 2 {
			if n > start && dst[n-2] == dst[i] && dst[n-1] == dst[i+1] {
				continue
			}
			dst[n], dst[n+1] = dst[i], dst[i+1]
			n += 2
		}
		dst = append(dst[:n], 0)
	}
	return dst
}

// kindKey is one byte, not zero, for each kind of evidence.
func kindKey(k phalanx.EvidenceKind) byte {
	return byte(1 + slices.Index(evidenceKinds, k))
}

var evidenceKinds = []phalanx.EvidenceKind{"", phalanx.TrainerExited, phalanx.DaemonExited, phalanx.HostSilent, phalanx.Stalled,
	phalanx.Hung, phalanx.NotReady, phalanx.VotedNotOK, phalanx.DigestsUnequal, phalanx.Sealed, phalanx.Unreachable,
	phalanx.GossipDead, phalanx.HealFailed, phalanx.Asked}
