// SPDX-License-Identifier: Apache-2.0

package node

import (
	"cmp"
	"path/filepath"
	"slices"
	"sync"

	"phalanx"
)

// roster knows where the daemons of the job are reached: what the leader tells, the files of this host, and the seeds. It is
// shared: Raft asks it whenever it dials.
type roster struct {
	paths Paths
	seeds []string
	self  func() Peer

	mu    sync.Mutex
	peers map[phalanx.MemberID]Peer
	news  map[phalanx.MemberID]uint64 // when the words about each were news, in pieces of news
	count uint64
}

func newRoster(paths Paths, seeds []string, self func() Peer) *roster {
	r := &roster{paths: paths, seeds: seeds, self: self, peers: map[phalanx.MemberID]Peer{}, news: map[phalanx.MemberID]uint64{}}
	var saved []Peer
	if readJSON(filepath.Join(paths.Dir, "roster.json"), &saved) == nil {
		r.learn(saved)
	}
	return r
}

// learn notes peers; newer words replace older ones.
func (r *roster) learn(peers []Peer) (changed bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, p := range peers {
		if p.Member == "" || p.Addr == "" {
			continue
		}
		old, known := r.peers[p.Member]
		if known && old.Incarnation > p.Incarnation {
			continue
		}
		if !known || old != p {
			r.count++
			r.peers[p.Member], r.news[p.Member], changed = p, r.count, true
		}
	}
	return changed
}

// forget drops the peers that need not be kept, beyond room of them: those first of whom nothing new was heard for longest.
func (r *roster) forget(room int, keep func(Peer) bool) (changed bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var strangers []phalanx.MemberID
	for id, p := range r.peers {
		if !keep(p) {
			strangers = append(strangers, id)
		}
	}
	if len(strangers) <= room {
		return false
	}
	slices.SortFunc(strangers, func(a, b phalanx.MemberID) int { return cmp.Compare(r.news[a], r.news[b]) })
	for _, id := range strangers[:len(strangers)-room] {
		delete(r.peers, id)
		delete(r.news, id)
	}
	return true
}

// save keeps the roster for a restart of the whole job.
func (r *roster) save() error { return writeJSON(filepath.Join(r.paths.Dir, "roster.json"), r.all()) }

func (r *roster) all() []Peer {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := make([]Peer, 0, len(r.peers))
	for _, p := range r.peers {
		out = append(out, p)
	}
	slices.SortFunc(out, func(a, b Peer) int { return phalanx.CompareMemberIDs(a.Member, b.Member) })
	return out
}

func (r *roster) peer(id phalanx.MemberID) (Peer, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	p, ok := r.peers[id]
	return p, ok
}

// rival reports whether another host of the same name is known.
func (r *roster) rival(p Peer) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, o := range r.peers {
		if o.Home != "" && p.otherHost(o) {
			return true
		}
	}
	return false
}

func (r *roster) byServer(server string) (Peer, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, p := range r.peers {
		if p.Server == server && server != "" {
			return p, true
		}
	}
	return Peer{}, false
}

// serverAddr is Raft's address book.
func (r *roster) serverAddr(server string) (string, bool) {
	if p := r.self(); p.Server == server {
		return p.Addr, true
	}
	p, ok := r.byServer(server)
	return p.Addr, ok
}

// addrs lists every address worth asking for the leader: this host's living daemons, the roster, the seeds.
func (r *roster) addrs(localSize int) []string {
	var out []string
	add := func(a string) {
		if a != "" && a != r.self().Addr && !slices.Contains(out, a) {
			out = append(out, a)
		}
	}
	for i := range localSize {
		var f DaemonFile
		if readJSON(r.paths.DaemonFile(i), &f) == nil && r.paths.system.Alive(f.PID, f.Start) {
			add(f.Addr)
		}
	}
	for _, p := range r.all() {
		add(p.Addr)
	}
	for _, s := range r.seeds {
		add(s)
	}
	return out
}
