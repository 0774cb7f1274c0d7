// SPDX-License-Identifier: Apache-2.0

package consensus

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// patient returns three servers that elect nobody by a timeout while a test runs, the first of which leads. Candidates that
// share the votes of an election wait for a time between again and twice that.
func (g *group) patient(again time.Duration) []*server {
	servers := g.start(3, func(c *Config) { c.Heartbeat = time.Minute })
	for _, s := range servers {
		g.ready(s, servers[0], again)
	}
	return servers
}

// ready waits until one of three servers has heard who leads and that all three vote: one that does not know stands for nothing.
func (g *group) ready(s, leader *server, again time.Duration) {
	s.cfg.FastHeartbeat = again
	g.eventually("relax", func() bool { return !s.Status().Hastened })
	g.eventually("know the leader", func() bool { id, _, ok := s.Leader(); return ok && id == leader.ServerID() })
	g.eventually("know the voters", func() bool { return len(s.Status().Voters) == 3 })
}

func TestStandNeedsNoTimeout(t *testing.T) {
	for _, told := range []string{"all", "first", "last"} {
		t.Run(told, func(t *testing.T) {
			g := newGroup(t)
			again := time.Minute
			if told == "all" { // the first one may take longer than its turn when this process is starved
				again = 3 * time.Second
			}
			servers := g.patient(again)
			g.propose(servers[0], "a")
			left := servers[1:]
			for _, s := range left {
				g.eventually("apply", func() bool { return s.Status().Seq == 1 })
			}
			slices.SortFunc(left, func(a, b *server) int { return strings.Compare(a.ServerID(), b.ServerID()) })
			stand := map[string][]*server{"all": left, "first": left[:1], "last": left[1:]}[told]
			term := left[0].Term()
			servers[0].kill(t)
			for _, s := range stand {
				s.Stand(servers[0].ServerID())
				s.Stand(servers[0].ServerID()) // its stream breaks and its process is gone: both tell
			}
			leader := g.leader(left...)
			if !slices.Contains(stand, leader) {
				t.Fatalf("%s leads, which was not told", leader.ServerID())
			}
			if told != "all" && leader.Term() != term+1 {
				t.Fatalf("term %d after term %d: there was more than one election", leader.Term(), term)
			}
			if r := g.propose(leader, "b"); r.Seq != 2 {
				t.Fatalf("got %+v", r)
			}
		})
	}
}

// slowTerm is a disk that takes its time for a new term once it is told to.
type slowTerm struct {
	LogStore
	slow *atomic.Bool
}

func (s slowTerm) SetUint64(key []byte, value uint64) error {
	if s.slow.Load() {
		time.Sleep(4 * standEvery)
	}
	return s.LogStore.SetUint64(key, value)
}

// TestStandDoesNotFollowAVote: the turn of the second voter comes while its disk still writes the vote for the first.
func TestStandDoesNotFollowAVote(t *testing.T) {
	g := newGroup(t)
	servers := []*server{g.open(t.TempDir())}
	slow := map[*server]*atomic.Bool{}
	for range 2 {
		disk := new(atomic.Bool)
		s := g.open(t.TempDir(), func(c *Config) {
			c.Heartbeat = time.Minute
			c.wrapStore = func(s LogStore) LogStore { return slowTerm{s, disk} }
		})
		servers, slow[s] = append(servers, s), disk
	}
	if err := servers[0].Bootstrap(); err != nil {
		t.Fatal(err)
	}
	g.leads(servers[0])
	left := servers[1:]
	for _, s := range left {
		g.join(servers[0], s)
	}
	for _, s := range left {
		g.ready(s, servers[0], time.Minute)
	}
	slices.SortFunc(left, func(a, b *server) int { return strings.Compare(a.ServerID(), b.ServerID()) })
	first, second := left[0], left[1]
	dead, term := servers[0].ServerID(), first.Term()
	servers[0].kill(t)
	slow[second].Store(true)
	first.Stand(dead)
	g.eventually("hear of the candidate", func() bool { id, _, _ := second.Leader(); return id == "" })
	second.Stand(dead)
	g.leads(first)
	time.Sleep(6 * standEvery) // as long as the second might take
	if got := first.Term(); got != term+1 || !first.IsLeader() {
		t.Fatalf("term %d after term %d, the first leads: %v", got, term, first.IsLeader())
	}
}

// TestStandAgainstALivingLeader tells servers of the end of one that does not lead.
func TestStandAgainstALivingLeader(t *testing.T) {
	g := newGroup(t)
	servers := g.patient(time.Minute)
	term := servers[0].Term()
	servers[0].Stand(servers[1].ServerID())
	servers[1].Stand(servers[2].ServerID())
	servers[2].Stand(servers[1].ServerID())
	time.Sleep(4 * standEvery) // nothing happens, and takes no longer than what might
	if got := servers[0].Term(); got != term || !servers[0].IsLeader() {
		t.Fatalf("term %d became %d; leads: %v", term, got, servers[0].IsLeader())
	}
}

func TestStoreIsReserved(t *testing.T) {
	g := newGroup(t)
	dir := t.TempDir()
	sync := func(c *Config) { c.NoSync = false }
	s := g.openLeaky(dir, sync)
	if err := s.Bootstrap(); err != nil {
		t.Fatal(err)
	}
	g.leads(s)
	g.propose(s, "a")
	s.stop(t)
	size := func() int64 {
		info, err := os.Stat(filepath.Join(dir, storeFile))
		if err != nil {
			t.Fatal(err)
		}
		return info.Size()
	}
	if got := size(); got != reservedBytes {
		t.Fatalf("the store has %d bytes, not %d", got, reservedBytes)
	}
	if err := os.Truncate(filepath.Join(dir, storeFile), reservedBytes/2); err != nil { // as one of an earlier release
		t.Fatal(err)
	}
	s = g.open(dir, sync)
	g.leads(s)
	if r := g.propose(s, "b"); r.Seq != 2 {
		t.Fatalf("got %+v", r)
	}
	if got := size(); got != reservedBytes {
		t.Fatalf("the store has %d bytes, not %d", got, reservedBytes)
	}
}
