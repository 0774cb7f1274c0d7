// SPDX-License-Identifier: Apache-2.0

package membership

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/memberlist"
)

// HintKind says what gossip believes.
type HintKind uint8

// The kinds of hints.
const (
	HintAlive   HintKind = iota + 1 // joined, or back after a false death
	HintDead                        // did not answer, or the word of its leaving was lost
	HintLeft                        // said that it goes
	HintUpdated                     // metadata changed
)

func (k HintKind) String() string {
	switch k {
	case HintAlive:
		return "alive"
	case HintDead:
		return "dead"
	case HintLeft:
		return "left"
	case HintUpdated:
		return "updated"
	default:
		return fmt.Sprintf("hint(%d)", uint8(k))
	}
}

// Hint is one thing that gossip said about another member. It may be wrong.
type Hint struct {
	Name string
	Kind HintKind
	Addr string // IP:PORT
	Meta []byte
	At   time.Time
}

// hintQueue is deep enough for a cell of members to join at once; a reader further behind reads Members.
const hintQueue = 256

// flagLeaving in the first byte of a member's metadata: it is about to leave.
const flagLeaving = 1

// packMeta puts Gossip's own byte before the caller's metadata.
func packMeta(flags byte, meta []byte) []byte { return append([]byte{flags}, meta...) }

// gossipView is what memberlist told about others, copied: its own records change under the reader. memberlist calls it
// with its lock held and on the goroutine that reads packets, so it only writes a map and a queue.
type gossipView struct {
	name    string
	hints   chan Hint
	dropped atomic.Uint64

	mu     sync.Mutex
	closed bool
	self   string // this member's advertised address
	known  map[string]seenMember
}

type seenMember struct {
	MemberInfo
	leaving bool
}

func newGossipView(self string) *gossipView {
	return &gossipView{name: self, hints: make(chan Hint, hintQueue), known: map[string]seenMember{}}
}

// NotifyAlive refuses what could not be a daemon of this project, before memberlist believes it.
func (v *gossipView) NotifyAlive(n *memberlist.Node) error {
	if len(n.Name) > maxNameBytes || len(n.Meta) < 1 || len(n.Meta) > MaxMetaBytes+1 {
		return fmt.Errorf("name of %d bytes with metadata of %d", len(n.Name), len(n.Meta))
	}
	return nil
}

// NotifyJoin implements memberlist.EventDelegate.
func (v *gossipView) NotifyJoin(n *memberlist.Node) { v.alive(n, HintAlive) }

// NotifyUpdate implements memberlist.EventDelegate.
func (v *gossipView) NotifyUpdate(n *memberlist.Node) { v.alive(n, HintUpdated) }

func (v *gossipView) alive(n *memberlist.Node, kind HintKind) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if n.Name == v.name {
		v.self = n.Address()
		return
	}
	if len(n.Meta) == 0 {
		return
	}
	m := seenMember{
		MemberInfo: MemberInfo{Name: n.Name, Addr: n.Address(), Meta: bytes.Clone(n.Meta[1:])},
		leaving:    n.Meta[0]&flagLeaving != 0,
	}
	was := v.known[n.Name]
	v.known[n.Name] = m
	switch {
	case m.leaving && was.leaving:
		return
	case m.leaving:
		kind = HintLeft
	}
	v.say(kind, m.MemberInfo)
}

// NotifyLeave implements memberlist.EventDelegate.
func (v *gossipView) NotifyLeave(n *memberlist.Node) {
	v.mu.Lock()
	defer v.mu.Unlock()
	m, ok := v.known[n.Name]
	if !ok {
		return
	}
	delete(v.known, n.Name)
	if !m.leaving {
		v.say(HintDead, m.MemberInfo)
	}
}

// say queues a hint; the caller holds mu, so nobody else writes and the loop ends.
func (v *gossipView) say(kind HintKind, m MemberInfo) {
	if v.closed {
		return
	}
	hint := Hint{Name: m.Name, Kind: kind, Addr: m.Addr, Meta: bytes.Clone(m.Meta), At: time.Now()}
	for {
		select {
		case v.hints <- hint:
			return
		default:
		}
		select {
		case <-v.hints:
			v.dropped.Add(1)
		default: // the reader took it
		}
	}
}

func (v *gossipView) members() []MemberInfo {
	v.mu.Lock()
	defer v.mu.Unlock()
	list := make([]MemberInfo, 0, len(v.known))
	for _, m := range v.known {
		if m.leaving {
			continue
		}
		m.Meta = bytes.Clone(m.Meta)
		list = append(list, m.MemberInfo)
	}
	slices.SortFunc(list, func(a, b MemberInfo) int { return cmp.Compare(a.Name, b.Name) })
	return list
}

// selfAddr returns this member's address; memberlist tells it before Create returns.
func (v *gossipView) selfAddr() string {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.self
}

// addrs returns the addresses of the living.
func (v *gossipView) addrs() map[string]bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	set := make(map[string]bool, len(v.known))
	for _, m := range v.known {
		set[m.Addr] = true
	}
	return set
}

// close ends the hints. memberlist's timers may still call in afterwards; they find closed.
func (v *gossipView) close() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.closed = true
	close(v.hints)
}

// selfDelegate hands memberlist this member's metadata and refuses everything else: decisions never travel by gossip.
type selfDelegate struct{ meta *atomic.Value }

// NodeMeta implements memberlist.Delegate; the limit is far above ours.
func (d selfDelegate) NodeMeta(int) []byte { return bytes.Clone(d.meta.Load().([]byte)) }

// NotifyMsg implements memberlist.Delegate.
func (selfDelegate) NotifyMsg([]byte) {}

// GetBroadcasts implements memberlist.Delegate.
func (selfDelegate) GetBroadcasts(int, int) [][]byte { return nil }

// LocalState implements memberlist.Delegate.
func (selfDelegate) LocalState(bool) []byte { return nil }

// MergeRemoteState implements memberlist.Delegate.
func (selfDelegate) MergeRemoteState([]byte, bool) {}
