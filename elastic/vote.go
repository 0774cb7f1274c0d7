// SPDX-License-Identifier: Apache-2.0

package elastic

import (
	"phalanx"
	"phalanx/internal/planted"
)

// tryVote casts the vote that the trainer asks for if the member may vote for it now. A vote is final.
func (m *Machine) tryVote(acts []Action) []Action {
	if m.state != LocalReady && m.state != LocalRunning {
		return acts
	}
	r, g := m.trainer.Request, m.log.World.Generation
	if r.Step == 0 || r.Generation != g || !m.lease || !m.formed || !m.stands() || m.isSealed() {
		return acts
	}
	if r.Step != m.trainer.Label.Step+1 || m.ask != nil && r.Step > m.ask.Boundary {
		return acts
	}
	changed := planted.On(planted.VoteChanges) && m.vote.Step == r.Step && m.vote != r
	if m.vote.Generation == g && m.vote.Step >= r.Step && !changed {
		return m.decide(acts) // cast already, perhaps by the daemon's predecessor
	}
	m.vote, m.state = r, LocalRunning
	return m.decide(m.hear(append(acts, WriteVote{r}), m.Seat().Rank, r))
}

func (m *Machine) peerVoted(ev PeerVoted) []Action {
	v := ev.Vote
	if m.log.World.Generation.Less(v.Generation) {
		m.keepEarly(ev)
		return nil
	}
	if v.Generation != m.log.World.Generation || int(ev.Rank) < 0 || int(ev.Rank) >= len(m.votes) || m.Seat() == nil {
		return nil
	}
	old := &m.votes[ev.Rank]
	if old.Generation == v.Generation && old.Step >= v.Step {
		return nil // a vote is final, and an older one says nothing new
	}
	return m.decide(m.hear(nil, ev.Rank, v))
}

// maxEarly bounds the votes that are kept before their generation is read. Those beyond are lost, and asked for again by
// the next seal.
const maxEarly = 1 << 14

// keepEarly keeps a vote of a generation that this member has not read yet: its voter was told of the entry before us.
func (m *Machine) keepEarly(ev PeerVoted) {
	for _, v := range m.early {
		if ev.Vote.Generation.Less(v.Generation) {
			return
		}
		if v.Generation.Less(ev.Vote.Generation) {
			m.early = nil
		}
		break // all are of one generation
	}
	if v, ok := m.early[ev.Rank]; ok && v.Step >= ev.Vote.Step || len(m.early) >= maxEarly {
		return
	}
	if m.early == nil {
		m.early = map[phalanx.Rank]Vote{}
	}
	m.early[ev.Rank] = ev.Vote
}

// hearEarly takes the votes that came before their generation was read.
func (m *Machine) hearEarly(acts []Action) []Action {
	early := m.early
	m.early = nil
	for r := range m.votes {
		if v, ok := early[phalanx.Rank(r)]; ok {
			acts = append(acts, m.peerVoted(PeerVoted{phalanx.Rank(r), v})...)
		}
	}
	return acts
}

// hear keeps a new vote and writes a refusal when it is not ok, or unlike another one of its coordinate.
func (m *Machine) hear(acts []Action, rank phalanx.Rank, v Vote) []Action {
	m.votes[rank] = v
	if !v.OK {
		return append(acts, m.refuse(v.Step, rank, phalanx.VotedNotOK)...)
	}
	g := m.log.World.GroupSize
	for r, o := range m.votes {
		if r%g == int(rank)%g && o.Generation == v.Generation && o.Step == v.Step && o.OK && o.Digest != v.Digest {
			return append(acts, m.refuse(v.Step, rank, phalanx.DigestsUnequal)...)
		}
	}
	return acts
}

func (m *Machine) refuse(step phalanx.Step, who phalanx.Rank, kind phalanx.EvidenceKind) []Action {
	g := m.log.World.Generation
	if m.refused.Generation == g && m.refused.Step >= step {
		return nil
	}
	m.refused = Vote{Generation: g, Step: step}
	return []Action{WriteRefusal{g, step, who, m.refusal(step, who, kind)}}
}

func (m *Machine) refusal(step phalanx.Step, who phalanx.Rank, kind phalanx.EvidenceKind) phalanx.Evidence {
	return phalanx.Evidence{Kind: kind, About: m.log.World.Seats[who].Incarnate, Source: m.me.Member, Step: step}
}

// decide commits the step of the own vote when every member of the world has voted ok for it with equal digests. A member
// that voted beyond has applied it, so it had. The set may be complete only after a seal; it counts until a newer entry is read.
func (m *Machine) decide(acts []Action) []Action {
	n, g := m.vote, m.log.World.Generation
	if n.Generation != g || !n.OK {
		return acts
	}
	size := m.log.World.GroupSize
	for r, v := range m.votes {
		if planted.On(planted.CommitShort) && r == len(m.votes)-1 {
			continue
		}
		if v.Generation != g || v.Step < n.Step || v.Step == n.Step && !v.OK {
			return acts
		}
		if v.Step == n.Step {
			for o := r % size; o < r; o += size {
				if m.votes[o].Step == n.Step && m.votes[o].Digest != v.Digest {
					return acts
				}
			}
		}
	}
	return append(acts, m.tell(WriteCommit{g, n.Step})...)
}
