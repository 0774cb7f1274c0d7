// SPDX-License-Identifier: Apache-2.0

package node

import (
	"slices"
	"strings"
	"testing"
	"time"

	"phalanx"
	"phalanx/elastic"
)

// wide is a world with one member for each word, in rank order.
func wide(members string) phalanx.World {
	w := phalanx.World{Generation: phalanx.Generation{Number: 3}, GroupSize: 1}
	for r, id := range strings.Fields(members) {
		w.Seats = append(w.Seats, phalanx.Seat{Incarnate: phalanx.Incarnate{Member: phalanx.MemberID(id), Incarnation: 1}, Rank: phalanx.Rank(r)})
	}
	return w
}

// Who is cut off itself goes, not those that it cannot reach.
func TestCover(t *testing.T) {
	for _, c := range []struct {
		what, world, pairs, leader, want string
	}{
		{"two hosts", "a/0 b/0", "a-b", "a", "b"},
		{"the leader stays", "a/0 b/0", "a-b", "b", "a"},
		{"two that do not lead", "a/0 b/0 c/0", "b-c", "a", "c"},
		{"one that reaches nobody", "a/0 b/0 c/0", "a-b b-c", "a", "b"},
		{"the leader's own host reaches nobody", "a/0 b/0 c/0", "a-b a-c", "a", "a"},
		{"fewer ranks go", "a/0 b/0 c/0 c/1", "b-c", "a", "b"},
		{"two breaks", "a/0 b/0 c/0 d/0", "a-b c-d", "a", "b d"},
		{"nobody reaches anybody", "a/0 b/0 c/0", "a-b a-c b-c", "b", "a c"},
	} {
		w := wide(c.world)
		var pairs []pair
		for word := range strings.FieldsSeq(c.pairs) {
			x, y, _ := strings.Cut(word, "-")
			pairs = append(pairs, pair{x, y})
		}
		if got := strings.Join(cover(pairs, &w, c.leader), " "); got != c.want {
			t.Errorf("%s: %s goes, want %s", c.what, got, c.want)
		}
	}
}

// A pair is judged when both are heard, and only after the leader has waited for more reports.
func TestJudgeCuts(t *testing.T) {
	now := time.Now()
	for _, c := range []struct {
		what    string
		change  func(a *arbiter, f *elastic.Facts)
		waited  time.Duration
		accused string
	}{
		{"at once", func(*arbiter, *elastic.Facts) {}, 0, ""},
		{"a moment later", func(*arbiter, *elastic.Facts) {}, cutGather, "b/0"},
		{"of an older generation", func(a *arbiter, _ *elastic.Facts) { a.members["b/0"].report.Generation.Number-- }, cutGather, ""},
		{"by one that is lost", func(_ *arbiter, f *elastic.Facts) { f.Fact("b/0").Connected = false }, cutGather, ""},
		{"about one that is lost", func(_ *arbiter, f *elastic.Facts) { f.Fact("c/0").Silent = true; f.Fact("a/0").Dead = true }, cutGather, ""},
		{"while nobody trains", func(a *arbiter, _ *elastic.Facts) { a.d.state.Phase = elastic.Halted }, cutGather, ""},
	} {
		a := court(&memberView{id: "b/0"}, &memberView{id: "c/0"})
		a.d.state.World = wide("a/0 b/0 c/0")
		f := &elastic.Facts{}
		for _, id := range []phalanx.MemberID{"a/0", "b/0", "c/0"} {
			a.members[id].report = &Report{Generation: a.d.state.World.Generation}
			f.Members = append(f.Members, elastic.MemberFact{Incarnate: a.d.state.World.SeatOf(id).Incarnate, Host: id.Host(), Connected: true})
		}
		a.members["b/0"].report.Cut = []phalanx.MemberID{"a/0", "c/0"}
		c.change(a, f)
		a.judgeCuts(f, now)
		if c.waited > 0 {
			a.judgeCuts(f, now.Add(c.waited))
		}
		var accused []string
		for i := range f.Members {
			for _, e := range f.Members[i].Evidence {
				if e.Kind == phalanx.CutOff {
					accused = append(accused, string(e.About.Member))
				}
			}
		}
		if got := strings.Join(slices.Compact(accused), " "); got != c.accused {
			t.Errorf("%s: accused %q, want %q", c.what, got, c.accused)
		}
	}
}

// A member outside waits until it has said, of the present world, that it reaches every host in it.
func TestApart(t *testing.T) {
	for _, c := range []struct {
		what, world string
		cut         []phalanx.MemberID
		older       bool
		lost        phalanx.MemberID
		want        bool
	}{
		{"it reaches all", "a/0 b/0", nil, false, "", false},
		{"it does not reach one", "a/0 b/0", []phalanx.MemberID{"b/0"}, false, "", true},
		{"it does not reach one that is lost", "a/0 b/0", []phalanx.MemberID{"b/0"}, false, "b/0", false},
		{"it does not reach one beside one that is lost", "a/0 b/0 d/0", []phalanx.MemberID{"b/0", "d/0"}, false, "b/0", true},
		{"it speaks of an older world", "a/0 b/0", nil, true, "", true},
		{"the world is on its own host", "c/1 c/2", nil, true, "", false},
		{"it is in the world", "a/0 c/0", []phalanx.MemberID{"a/0"}, false, "", false},
		{"there is no world", "", nil, true, "", false},
	} {
		v := &memberView{id: "c/0", report: &Report{Generation: phalanx.Generation{Number: 3}, Cut: c.cut}}
		a := court(v)
		a.d.state.World = wide(c.world)
		if c.older {
			v.report.Generation.Number--
		}
		f := &elastic.Facts{}
		for _, seat := range a.d.state.World.Seats {
			f.Members = append(f.Members, elastic.MemberFact{Incarnate: seat.Incarnate, Connected: true, Silent: seat.Member == c.lost})
		}
		if got := a.apart(f, v); got != c.want {
			t.Errorf("%s: apart %v", c.what, got)
		}
	}
}

// A connection that comes and goes keeps nobody from the deadline of a formation; a daemon that took over has all of it.
func TestAFlappingConnectionMeetsTheDeadlineOfAFormation(t *testing.T) {
	for _, successor := range []bool{false, true} {
		g := phalanx.Generation{Number: 3}
		v := &memberView{id: "b/0"}
		a := court(v)
		a.d.state.World = wide("a/0 b/0")
		begun := time.Now()
		a.formedAt, a.movedAt = begun, begun
		var evidence []phalanx.Evidence
		for at := time.Duration(0); at <= formDeadline+time.Second; at += time.Second {
			peer := Peer{Incarnate: incarnate("b", 0, 1), BootID: "boot", DaemonPID: 7}
			if successor && at >= formDeadline {
				peer.DaemonPID++
			}
			v.connected(&downstream{peer: peer}, begun.Add(at))
			v.report = &Report{Generation: g, Local: elastic.LocalForming.String()}
			m := &elastic.MemberFact{Incarnate: peer.Incarnate}
			a.judgeReady(m, v, begun.Add(at))
			evidence = m.Evidence
		}
		if late := len(evidence) == 1 && evidence[0].Kind == phalanx.NotReady; late == successor {
			t.Errorf("a successor %v: evidence %v", successor, evidence)
		}
	}
}
