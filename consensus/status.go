// SPDX-License-Identifier: Apache-2.0

package consensus

import (
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/raft"
)

// Status is a report on one server.
type Status struct {
	ServerID      string       `json:"server_id"`
	JobID         string       `json:"job_id"`
	State         string       `json:"state"` // follower, candidate, leader, shutdown
	Leads         bool         `json:"leads"` // leader, and everything of earlier terms is applied
	Term          uint64       `json:"term"`
	Commit        uint64       `json:"commit_index"`
	Applied       uint64       `json:"applied_index"`
	LastIndex     uint64       `json:"last_index"`
	SnapshotIndex uint64       `json:"snapshot_index"`
	Seq           uint64       `json:"seq"` // commands applied
	Leader        string       `json:"leader,omitempty"`
	LeaderAddr    string       `json:"leader_addr,omitempty"`
	Voter         bool         `json:"voter"`
	Voters        []string     `json:"voters"`
	Standbys      []string     `json:"standbys"`
	Hastened      bool         `json:"hastened"`
	Peers         []PeerStatus `json:"peers,omitempty"` // on the leader
}

// PeerStatus is what the leader has seen of another server.
type PeerStatus struct {
	ServerID       string  `json:"server_id"`
	MatchIndex     uint64  `json:"match_index"`
	ContactSeconds float64 `json:"contact_seconds"` // since its last answer; -1 when there was none in this term
}

// Status reports on this server. The values are read one after the other, not at one instant.
func (l *Log) Status() Status {
	s := Status{
		ServerID: l.id, JobID: l.cfg.JobID,
		State: strings.ToLower(l.raft.State().String()), Leads: l.IsLeader(), Term: l.raft.CurrentTerm(),
		Commit: l.raft.CommitIndex(), Applied: l.raft.AppliedIndex(), LastIndex: l.raft.LastIndex(),
		Seq: l.fsm.seq(), Hastened: l.hastened.Load(),
		Voters: []string{}, Standbys: []string{},
	}
	s.SnapshotIndex, _ = strconv.ParseUint(l.raft.Stats()["last_snapshot_index"], 10, 64)
	s.Leader, s.LeaderAddr, _ = l.Leader()
	for _, server := range serversOf(l.raft.GetConfiguration().Configuration()) {
		if server.Voter {
			s.Voters = append(s.Voters, server.ID)
		} else {
			s.Standbys = append(s.Standbys, server.ID)
		}
		if server.ID == l.id {
			s.Voter = server.Voter
			continue
		}
		if l.raft.State() == raft.Leader {
			peer := PeerStatus{ServerID: server.ID, ContactSeconds: -1}
			if p, ok := l.PeerProgress(server.ID); ok {
				peer.MatchIndex, peer.ContactSeconds = p.Match, time.Since(p.Contact).Seconds()
			}
			s.Peers = append(s.Peers, peer)
		}
	}
	return s
}
