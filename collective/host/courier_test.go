// SPDX-License-Identifier: Apache-2.0

package host

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"phalanx"
)

// groupsOf is a cluster whose trainers may make groups.
func groupsOf(t tb, hosts []int, bytes int, o Options) *cluster {
	t.Helper()
	n := len(hosts)
	c := newCluster(t, layout{hosts: hosts, deal: evenDeal(t, n, n), slots: n, bytes: bytes, groups: MaxGroups, options: o})
	c.formAll(t)
	return c
}

func (c *cluster) made(t tb, id uint64, group ...phalanx.Rank) {
	t.Helper()
	for _, r := range group {
		if err := c.engines[r].Make(c.world.Generation, id, group); err != nil {
			t.Fatalf("%v", err)
		}
	}
}

// TestMessages: whatever is sent between members of groups of any hosts comes to the receive with the same group, tag and number, in
// whichever order both sides post.
func TestMessages(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(2, 4).Draw(t, "ranks")
		hosts, most := make([]int, n), rapid.SampledFrom([]int{0, 0, 1}).Draw(t, "last host")
		for i := range hosts {
			hosts[i] = rapid.IntRange(0, most).Draw(t, "host")
		}
		rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 2))
		const most64 = 64 // the ring of a trainer
		const room = 700 << 10
		c := groupsOf(t, hosts, 2*20*room, Options{})
		defer c.close()
		for id := range uint64(2) {
			c.made(t, id+1, []phalanx.Rank{0, 1, 2, 3}[:n]...)
		}
		type message struct {
			send, recv Op
			from, to   int
			text       []byte
		}
		sent := make([]uint64, n) // descriptors of each rank
		var messages []message
		for range rapid.IntRange(1, 20).Draw(t, "messages") {
			from := rng.IntN(n)
			to := (from + 1 + rng.IntN(n-1)) % n
			count := []int64{0, 1, 1000, maxPayload + 5, 2*maxPayload + 100}[rng.IntN(5)]
			op := Op{ID: uint64(1 + rng.IntN(2)), DType: U8, Count: count, Tag: uint64(rng.IntN(3))}
			s, r := op, op
			s.Kind, s.Peer, r.Kind, r.Peer = Send, phalanx.Rank(to), Recv, phalanx.Rank(from)
			m := message{s, r, from, to, pattern(rng.IntN(1000), count)}
			sent[from]++
			m.send.Seq, m.send.InOffset = sent[from], int64(sent[from]-1)*room%(20*room)
			messages = append(messages, m)
		}
		// Receives take numbers behind the sends, in the order of the messages or any other that keeps the order of each tag.
		for i := range messages {
			m := &messages[i]
			sent[m.to]++
			m.recv.Seq, m.recv.OutOffset = sent[m.to], 20*room+int64(i)*room
			if sent[m.to] > most64 {
				t.Fatalf("more than a ring holds")
			}
		}
		errs := make(chan error, 2*len(messages))
		type posting struct {
			rank int
			op   Op
		}
		var all []posting
		for _, m := range messages {
			copy(c.segments[m.from][m.send.InOffset:], m.text)
			all = append(all, posting{m.from, m.send}, posting{m.to, m.recv})
		}
		key := func(p posting) string {
			return fmt.Sprint(p.rank, p.op.Kind, p.op.Peer, p.op.ID, p.op.Tag)
		}
		// Shuffle, and put those of one direction and tag back into their order.
		places := map[string][]int{}
		order := map[string][]posting{}
		for _, p := range all {
			order[key(p)] = append(order[key(p)], p)
		}
		shuffled := slices.Clone(all)
		rng.Shuffle(len(shuffled), func(i, j int) { shuffled[i], shuffled[j] = shuffled[j], shuffled[i] })
		for i, p := range shuffled {
			places[key(p)] = append(places[key(p)], i)
		}
		for k, at := range places {
			for i, place := range at {
				shuffled[place] = order[k][i]
			}
		}
		for _, p := range shuffled {
			c.engines[p.rank].Post(c.world.Generation, p.op, func(err error) { errs <- err })
		}
		for range 2 * len(messages) {
			if err := await(t, "message", errs); err != nil {
				t.Fatalf("%v", err)
			}
		}
		for i, m := range messages {
			differ(t, fmt.Sprintf("message %d from %d to %d, tag %d", i, m.from, m.to, m.send.Tag), c.segments[m.to][m.recv.OutOffset:][:len(m.text)], m.text)
		}
	})
}

// TestMessageSizes: of a message whose ends want different sizes both fail, and the group lives.
func TestMessageSizes(t *testing.T) {
	for _, hosts := range [][]int{{0, 0}, {0, 1}} {
		t.Run(fmt.Sprint(hosts), func(t *testing.T) {
			c := groupsOf(t, hosts, 4096, Options{})
			defer c.close()
			c.made(t, 1, 0, 1)
			send := c.post(0, Op{Seq: 1, ID: 1, Kind: Send, DType: F32, Count: 4, Peer: 1})
			recv := c.post(1, Op{Seq: 1, ID: 1, Kind: Recv, DType: F32, Count: 5, Peer: 0})
			wantErr(t, await(t, "send", send), ErrMismatch)
			wantErr(t, await(t, "recv", recv), ErrMismatch)
			c.mustAll(t, ranks(2), func(int) Op { return Op{Seq: 2, ID: 1, Kind: Barrier} })
		})
	}
}

// TestMessagesInvalid: what does not fit is refused at once, and concerns nobody else.
func TestMessagesInvalid(t *testing.T) {
	c := groupsOf(t, []int{0, 0, 0}, 4096, Options{})
	defer c.close()
	c.made(t, 1, 0, 1)
	for name, op := range map[string]Op{
		"self":         {Kind: Send, DType: F32, Count: 4, Peer: 0},
		"stranger":     {Kind: Send, DType: F32, Count: 4, Peer: 2},
		"nobody":       {Kind: Recv, DType: F32, Count: 4, Peer: -1},
		"type":         {Kind: Recv, DType: 99, Count: 4, Peer: 1},
		"negative":     {Kind: Recv, DType: F32, Count: -4, Peer: 1},
		"huge":         {Kind: Recv, DType: F32, Count: 1 << 60, Peer: 1},
		"offset":       {Kind: Send, DType: F32, Count: 4, Peer: 1, InOffset: 4090},
		"odd offset":   {Kind: Recv, DType: F32, Count: 4, Peer: 1, OutOffset: 2},
		"wrong offset": {Kind: Recv, DType: F32, Count: 4, Peer: 1, OutOffset: -4},
	} {
		op.ID, op.Seq = 1, 1
		if err := await(t, name, c.post(0, op)); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	wantErr(t, await(t, "unknown group", c.post(0, Op{ID: 2, Kind: Send, DType: F32, Peer: 1})), ErrInvalid)
}

// TestMessagesEnd: a message that nobody takes ends with an abort of either side, with the peer's link, with the generation, and with the
// deadline.
func TestMessagesEnd(t *testing.T) {
	for _, hosts := range [][]int{{0, 0}, {0, 1}} {
		for _, kind := range []Kind{Send, Recv} {
			for name, end := range map[string]func(c *cluster){
				"own abort":    func(c *cluster) { c.engines[0].Abort(c.world.Generation, 1) },
				"peer's abort": func(c *cluster) { c.engines[1].Abort(c.world.Generation, 1) },
				"peer's end":   func(c *cluster) { c.engines[1].AbortAll(c.world.Generation) },
				"revoke":       func(c *cluster) { <-c.engines[0].Revoke(c.world.Generation) },
				"link":         func(c *cluster) { _ = c.links[[2]int{1, 0}].Close() },
				"deadline":     func(*cluster) {},
			} {
				if name == "link" && hosts[1] == 0 {
					continue
				}
				t.Run(fmt.Sprint(hosts, kind, " ", name), func(t *testing.T) {
					o := Options{}
					if name == "deadline" {
						o.Timeout = 30 * time.Millisecond
					}
					c := groupsOf(t, hosts, 4096, o)
					defer c.close()
					c.made(t, 1, 0, 1)
					done := c.post(0, Op{Seq: 1, ID: 1, Kind: kind, DType: U8, Count: 16, Peer: 1})
					time.Sleep(2 * time.Millisecond)
					end(c)
					want := map[string]error{"own abort": phalanx.ErrRevoked, "revoke": phalanx.ErrRevoked, "deadline": ErrDeadline}[name]
					if want == nil {
						want = ErrPeer
					}
					wantErr(t, await(t, name, done), want)
				})
			}
		}
	}
}
