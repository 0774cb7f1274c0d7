// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"phalanx"
	"phalanx/elastic"
)

// court is an arbiter on a/0 that judges by hand-made views: b/0 is judged, b/1 is its sibling.
func court(members ...*memberView) *arbiter {
	d := &Daemon{cfg: Config{Host: "a"}, log: quiet(), state: elastic.NewState()}
	a := &arbiter{d: d, members: map[phalanx.MemberID]*memberView{}}
	for _, v := range append(members, &memberView{id: "a/0", local: true}) {
		a.members[v.id] = v
	}
	return a
}

// verdict is the part of a fact that a judge decides.
type verdict struct {
	grace, silent, dead bool
	kind                phalanx.EvidenceKind // "": no evidence
	source              phalanx.MemberID
}

func verdictOf(m *elastic.MemberFact) verdict {
	v := verdict{grace: m.InGrace, silent: m.Silent, dead: m.Dead}
	for _, e := range m.Evidence {
		v.kind, v.source = e.Kind, e.Source
	}
	return v
}

// The loss of a connection means what the kernel of the member's host says it means, and nothing before its deadline.
func TestJudgeLost(t *testing.T) {
	const short, long = time.Millisecond, time.Hour
	grace := verdict{grace: true}
	for _, c := range []struct {
		name      string
		hostLives bool
		sibling   *Sibling
		silence   time.Duration
		want      verdict
	}{
		{"nobody of its host, just now", false, nil, short, grace},
		{"nobody of its host, before a seal's deadline", false, nil, sealSilence - short, grace},
		{"nobody of its host, for long", false, nil, sealSilence, verdict{silent: true, kind: phalanx.Unreachable, source: "a/0"}},
		{"its siblings have not looked yet", true, nil, short, grace},
		{"its siblings say nothing", true, nil, long, verdict{silent: true, kind: phalanx.Unreachable, source: "a/0"}},
		{"daemon and trainer are gone", true, &Sibling{}, short, verdict{dead: true, kind: phalanx.DaemonExited, source: "b/1"}},
		{"its daemon is gone, just now", true, &Sibling{Trainer: true}, short, grace},
		{"its daemon is gone and nobody took over", true, &Sibling{Trainer: true}, graceNewPID, verdict{silent: true, kind: phalanx.DaemonExited, source: "b/1"}},
		{"its daemon is stopped", true, &Sibling{Trainer: true, Daemon: true, Stopped: true}, short, verdict{silent: true, kind: phalanx.Stalled, source: "b/1"}},
		{"a new daemon has not said hello", true, &Sibling{Trainer: true, Daemon: true}, graceHello - short, grace},
		{"a new daemon says no hello", true, &Sibling{Trainer: true, Daemon: true}, graceHello, verdict{silent: true, kind: phalanx.Unreachable, source: "b/1"}},
		{"a daemon without a trainer may still come", true, &Sibling{Daemon: true}, graceHello - short, grace},
	} {
		t.Run(c.name, func(t *testing.T) {
			now := time.Now()
			v := &memberView{id: "b/0", lost: now.Add(-c.silence)}
			members := []*memberView{v}
			if c.hostLives {
				members = append(members, &memberView{id: "b/1", conn: &downstream{}})
			}
			m := &elastic.MemberFact{}
			m.Incarnate = incarnate("b", 0, 1)
			from := phalanx.MemberID("")
			if c.sibling != nil {
				from = "b/1"
			}
			court(members...).judgeLost(m, v, c.sibling, from, now)
			if got := verdictOf(m); got != c.want {
				t.Errorf("judged %+v, want %+v", got, c.want)
			}
			for _, e := range m.Evidence {
				if e.About != m.Incarnate || e.UnixNS != v.lost.UnixNano() || e.Detail == "" {
					t.Errorf("evidence %+v", e)
				}
			}
		})
	}
}

// A connection whose other kernel acknowledges belongs to a daemon that does not run, never to a dead host.
func TestJudgeConnected(t *testing.T) {
	key := NewJobKey()
	server := listen(t, identity(t, key, "job", "b/0"))
	conn, err := listen(t, identity(t, key, "job", "a/0")).Dial(brief(t), server.Addr().String(), ProtoStream)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	stalled := verdict{silent: true, kind: phalanx.Stalled, source: "a/0"}
	for _, c := range []struct {
		name    string
		local   bool
		silence time.Duration
		want    verdict
	}{
		{"it speaks", false, 0, verdict{}},
		{"it is a little late", false, stallAfter - time.Millisecond, verdict{}},
		{"it says nothing", false, stallAfter, stalled},
		{"the leader never judges itself", true, time.Hour, verdict{}},
	} {
		t.Run(c.name, func(t *testing.T) {
			now := time.Now()
			v := &memberView{id: "b/0", local: c.local, conn: &downstream{conn: conn}, heard: now.Add(-c.silence)}
			m := &elastic.MemberFact{Host: "b"}
			court(v).judgeConnected(m, v, now)
			if got := verdictOf(m); got != c.want {
				t.Errorf("judged %+v, want %+v", got, c.want)
			}
		})
	}
}

// What a sibling says counts while its own daemon is connected and only about the very life it names.
func TestSiblingsSpeakOfTheirHostOnly(t *testing.T) {
	who := incarnate("b", 0, 3)
	word := &Report{Siblings: []Sibling{{Incarnate: incarnate("b", 0, 2)}, {Incarnate: who, Trainer: true}}}
	for _, c := range []struct {
		name string
		view *memberView
		want phalanx.MemberID
	}{
		{"a connected one", &memberView{id: "b/1", conn: &downstream{}, report: word}, "b/1"},
		{"the leader's own", &memberView{id: "b/1", local: true, report: word}, "b/1"},
		{"one that is lost itself", &memberView{id: "b/1", report: word}, ""},
		{"one of another host", &memberView{id: "c/1", conn: &downstream{}, report: word}, ""},
		{"the member itself", &memberView{id: "b/0", conn: &downstream{}, report: word}, ""},
		{"one that has not reported", &memberView{id: "b/1", conn: &downstream{}}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, from := court(c.view).sibling(who)
			if from != c.want || (s != nil) != (c.want != "") || s != nil && !s.Trainer {
				t.Errorf("%+v from %q, want %q", s, from, c.want)
			}
		})
	}
}

// A connected daemon knows its trainer better than a sibling does; of a lost one the sibling's word about the trainer counts.
func TestFactOfALostMemberTakesItsSiblingsWord(t *testing.T) {
	who := incarnate("b", 0, 3)
	exit := &phalanx.Evidence{Kind: phalanx.TrainerExited, About: who, Source: "b/1"}
	sibling := &memberView{id: "b/1", conn: &downstream{}, heard: time.Now(), report: &Report{Incarnate: incarnate("b", 1, 1), Siblings: []Sibling{{Incarnate: who, Daemon: true, Evidence: exit}}}}
	report := &Report{Incarnate: who, Possession: elastic.Possession{Trainer: true}, Ready: true}
	for _, connected := range []bool{true, false} {
		t.Run(fmt.Sprintf("connected %v", connected), func(t *testing.T) {
			v := &memberView{id: "b/0", report: report, heard: time.Now(), lost: time.Now()}
			if connected {
				v.conn = &downstream{}
			}
			m, ok := court(v, sibling).fact(v, time.Now())
			if !ok || m.Incarnate != who || m.Connected != connected || m.Host != "b" {
				t.Fatalf("fact %+v, %v", m, ok)
			}
			exited := slices.ContainsFunc(m.Evidence, func(e phalanx.Evidence) bool { return e.Kind == phalanx.TrainerExited })
			if m.Possession.Trainer != connected || exited == connected {
				t.Errorf("possession %+v, evidence %v", m.Possession, m.Evidence)
			}
		})
	}
}

func TestNoFactOfAStrangerWithoutAWord(t *testing.T) {
	v := &memberView{id: "b/0", lost: time.Now()}
	a := court(v)
	if m, ok := a.fact(v, time.Now()); ok {
		t.Errorf("fact %+v of a member that nobody has heard of", m)
	}
	a.d.state.World = phalanx.World{Seats: []phalanx.Seat{{Incarnate: incarnate("b", 0, 7)}}}
	if m, ok := a.fact(v, time.Now()); !ok || m.Incarnation != 7 || !m.Possession.Trainer || !m.InGrace {
		t.Errorf("fact of a seat that was not heard: %+v, %v", m, ok)
	}
}

// A member that is lost keeps its lease for its length after the election and after its last grant. What the others renew
// meanwhile does not count, or nobody could ever take its place.
func TestLeaseOutIsOfThoseWhoDoNotAnswer(t *testing.T) {
	now := time.Now()
	const long, short = leaseLength + time.Second, leaseLength - time.Second
	answered := &memberView{id: "b/0", answer: &elastic.Answer{}, granted: now}
	for _, c := range []struct {
		name  string
		since time.Duration
		lost  *memberView
		want  bool
	}{
		{"just elected", short, &memberView{id: "b/1"}, false},
		{"never granted", long, &memberView{id: "b/1"}, true},
		{"granted lately", long, &memberView{id: "b/1", granted: now.Add(-short)}, false},
		{"granted long ago", long, &memberView{id: "b/1", granted: now.Add(-long)}, true},
		{"granted to its next life", long, &memberView{id: "b/1", granted: now, report: &Report{Incarnate: incarnate("b", 1, 2)}}, true},
	} {
		a := court(answered, c.lost)
		a.since = now.Add(-c.since)
		a.d.state.World.Seats = []phalanx.Seat{{Incarnate: incarnate("b", 0, 1)}, {Incarnate: incarnate("b", 1, 1)}}
		if got := a.leaseOut(now); got != c.want {
			t.Errorf("%s: %v", c.name, got)
		}
	}
}

// A member that reports and never answers an ordinary seal does not hold the round up for ever.
func TestJudgeAnswer(t *testing.T) {
	now := time.Now()
	for _, c := range []struct {
		name  string
		round elastic.Round
		asked time.Duration
		v     memberView
		want  bool
	}{
		{"nothing asked", elastic.Round{}, time.Hour, memberView{}, false},
		{"asked just now", elastic.Round{Asked: true}, answerDeadline, memberView{}, false},
		{"no answer", elastic.Round{Asked: true}, answerDeadline + time.Second, memberView{}, true},
		{"answered", elastic.Round{Asked: true}, time.Hour, memberView{answer: &elastic.Answer{}}, false},
		{"waits for a boundary", elastic.Round{Asked: true, Planned: true}, time.Hour, memberView{}, false},
	} {
		a := court()
		a.round, a.roundAt = c.round, now.Add(-c.asked)
		m := &elastic.MemberFact{}
		a.judgeAnswer(m, &c.v, now)
		if m.Silent != c.want || (len(m.Evidence) > 0) != c.want {
			t.Errorf("%s: silent %v, evidence %v", c.name, m.Silent, m.Evidence)
		}
	}
}

// All of the members that are there leave: that is a stop. Those that were drained before, and strangers that have gone, do not
// make of it one member after the other leaving for good.
func TestStopWithoutThoseThatLeftBefore(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*elastic.State, *memberView)
		want   bool
	}{
		{"it was drained and has ended", func(s *elastic.State, v *memberView) { v.conn = nil }, true},
		{"it was drained and is ending", func(*elastic.State, *memberView) {}, true},
		{"it was never in the log and has gone", func(s *elastic.State, v *memberView) { s.Members, v.conn = s.Members[:1], nil }, true},
		{"it is new and stays", func(s *elastic.State, v *memberView) { s.Members = s.Members[:1] }, false},
		{"its next life is starting", func(s *elastic.State, v *memberView) { v.report.Incarnation = 2 }, false},
		{"it lives and stays", func(s *elastic.State, v *memberView) { s.Members[1].State = elastic.Active }, false},
		{"it lives and is out of reach", func(s *elastic.State, v *memberView) { s.Members[1].State, v.conn = elastic.Spare, nil }, false},
	} {
		drained := &memberView{id: "b/0", conn: &downstream{}, heard: time.Now(), report: &Report{Incarnate: incarnate("b", 0, 1)}}
		a := court(drained)
		own := a.members["a/0"]
		own.report = &Report{Incarnate: incarnate("a", 0, 1), Leaving: true}
		s := a.d.state
		s.Members = []elastic.Member{{Incarnate: incarnate("a", 0, 1), State: elastic.Active}, {Incarnate: incarnate("b", 0, 1), State: elastic.Gone, Drained: true}}
		c.change(s, drained)
		a.d.life = &life{who: incarnate("a", 0, 1), machine: elastic.NewMachine(incarnate("a", 0, 1), s, elastic.Page{})}
		a.leaveAt = time.Now()
		if got := a.facts(time.Now()).Stop; got != c.want {
			t.Errorf("%s: a stop is %v, want %v", c.name, got, c.want)
		}
	}
}
