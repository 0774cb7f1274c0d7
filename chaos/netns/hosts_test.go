// SPDX-License-Identifier: Apache-2.0

package netns_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"phalanx"
	"phalanx/elastic"
	"phalanx/node"
)

// TestP1TwoHosts trains over two hosts through the loss of a trainer, of a daemon, of the network for a moment and of a whole
// host, which comes back by the command that started it.
func TestP1TwoHosts(t *testing.T) {
	c := newCluster(t, 2, 150, "a", "b")
	a, b := c.hosts[0], c.hosts[1]
	first := c.start(a)
	before := c.until(a, "host a waits for the others", func(s *node.Status) bool {
		return member(s, "a/0").TrainerPID > 0 && member(s, "a/1").TrainerPID > 0
	})
	want := "other hosts join with --join " + c.address() + "\n"
	for end := time.Now().Add(5 * time.Second); !strings.Contains(content(first.errs), want); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) { // run looks for the daemon's address ten times a second
			t.Fatalf("run said %q, not %q", content(first.errs), want)
		}
	}
	c.refused("another job key", "--key-file", c.newKey("another"))
	c.refused("needs a job key")

	second := c.start(b) // in the directory from which it was refused before
	s := c.whole(5)
	if want := []phalanx.MemberID{"a/0", "a/1", "b/0", "b/1"}; !slices.Equal(s.World, want) || s.Generation != 1 {
		t.Fatalf("the first world is %v in generation %d", s.World, s.Generation)
	}
	c.survived(before, s, "a/0", "a/1")
	c.voters(2, 1)

	t.Log("a trainer of host b is killed")
	s = c.whole(s.Step)
	c.kill(member(s, "b/1").TrainerPID)
	after := c.until(a, "b/1 trains in a new life", func(s *node.Status) bool {
		return s.Phase == "running" && len(s.World) == 4 && member(s, "b/1").Incarnation == 2
	})
	c.survived(s, after, "a/0", "a/1", "b/0")

	t.Log("a daemon of host b is killed: its successor takes over beside the trainer, with new connections")
	s = c.whole(after.Step + 3)
	c.kill(member(s, "b/1").DaemonPID)
	after = c.until(a, "b/1 has a new daemon and trains", func(n *node.Status) bool {
		m := member(n, "b/1")
		return n.Phase == "running" && len(n.World) == 4 && m.DaemonPID > 0 && m.DaemonPID != member(s, "b/1").DaemonPID && m.TrainerPID > 0 && n.Step > s.Step+3
	})
	c.survived(s, after, "a/0", "a/1", "b/0", "b/1")
	// Its connections for collectives end with it, and the generation with them. Nobody is lost.
	if after.Generation > s.Generation+1 {
		t.Errorf("a daemon that came back cost generations %d to %d", s.Generation+1, after.Generation)
	}

	t.Log("the network is away for 0.3 s")
	s = c.whole(after.Step + 3)
	c.must(b.Cut())
	time.Sleep(300 * time.Millisecond) // what is tested is this very time
	c.must(b.Mend())
	after = c.whole(s.Step + 10)
	if after.Generation != s.Generation {
		t.Errorf("generation %d became %d", s.Generation, after.Generation)
	}
	c.survived(s, after, "a/0", "a/1", "b/0", "b/1")

	t.Log("host b falls")
	s = c.whole(after.Step)
	c.reboot(b)
	fell := time.Now()
	after = c.until(a, "host a trains alone", func(n *node.Status) bool {
		return n.Fresh && n.Phase == "running" && slices.Equal(n.World, []phalanx.MemberID{"a/0", "a/1"}) && n.Step > s.Step+2
	})
	t.Logf("host a trains alone %.1f s later", time.Since(fell).Seconds())
	c.survived(s, after, "a/0", "a/1")
	if code := c.end(second, patience); code == 0 {
		t.Errorf("the killed run ended with code 0")
	}

	t.Log("the same command is given on host b again")
	second = c.start(b)
	after = c.whole(after.Step)
	c.survived(s, after, "a/0", "a/1")
	c.finish(first, second)
}

// TestP1FirstHostFalls loses the host with two of the three voters, the leader among them. The other one cannot decide anything
// and keeps the state; the job goes on when the first host is back.
func TestP1FirstHostFalls(t *testing.T) {
	c := newCluster(t, 2, 150, "a", "b")
	a, b := c.hosts[0], c.hosts[1]
	first, second := c.start(a), c.start(b)
	before := c.whole(20)
	c.voters(2, 1)
	c.reboot(a)
	c.end(first, patience)
	left := c.until(b, "host b knows no leader", func(s *node.Status) bool { return !s.Fresh && s.Leader == "" })
	if left.Generation != before.Generation {
		t.Errorf("the minority is in generation %d, it was left in %d", left.Generation, before.Generation)
	}
	first = c.start(a)
	after := c.whole(left.Step)
	c.survived(before, after, "b/0", "b/1")
	c.finish(first, second)
}

// TestP2MinorityStops cuts one host off for good. It commits nothing, the other one goes on, and both train together again
// when the network is back.
func TestP2MinorityStops(t *testing.T) {
	c := newCluster(t, 2, 150, "a", "b")
	a, b := c.hosts[0], c.hosts[1]
	first, second := c.start(a), c.start(b)
	before := c.whole(20)
	c.voters(2, 1)
	c.must(b.Cut())
	alone := c.until(a, "host a trains alone", func(s *node.Status) bool {
		return s.Fresh && s.Phase == "running" && len(s.World) == 2 && s.Step > before.Step+10
	})
	i := slices.IndexFunc(alone.Transitions, func(tr elastic.Transition) bool { return tr.Generation.Number == alone.Generation })
	if i < 0 {
		t.Fatalf("generation %d is not in the history", alone.Generation)
	}
	resumed := alone.Transitions[i].ResumeStep
	minority := c.until(b, "host b answers", func(*node.Status) bool { return true })
	moved := c.until(a, "host a trains on", func(s *node.Status) bool { return s.Step > alone.Step+15 })
	now := c.until(b, "host b answers", func(*node.Status) bool { return true })
	for _, s := range []*node.Status{minority, now} {
		if s.Generation != before.Generation || s.Step > resumed || s.Fresh {
			t.Errorf("the minority is at step %d of generation %d (fresh %v); the majority left it at step %d of generation %d", s.Step, s.Generation, s.Fresh, resumed, before.Generation)
		}
	}
	c.must(b.Mend())
	after := c.whole(moved.Step)
	c.survived(before, after, "a/0", "a/1")
	c.finish(first, second)
}

// refused joins from host b and wants exit code 10 with the words within seconds, and host a untouched.
func (c *cluster) refused(words string, flags ...string) {
	c.t.Helper()
	before, err := c.watch.ask(c.hosts[0])
	if err != nil {
		c.t.Fatal(err)
	}
	r := c.run(c.hosts[1], append(flags, "--bind", c.hosts[1].Addr.String(), "--join", c.address())...)
	if code := c.end(r, 15*time.Second); code != node.CodeAuth || !strings.Contains(content(r.errs), words) {
		c.t.Errorf("joining with %q ended with code %d, want %d and %q: %s", flags, code, node.CodeAuth, words, content(r.errs))
	}
	after, err := c.watch.ask(c.hosts[0])
	if err != nil {
		c.t.Fatal(err)
	}
	c.survived(before, after, "a/0", "a/1")
	if len(after.Members) != len(before.Members) {
		c.t.Errorf("members were %+v and are %+v", before.Members, after.Members)
	}
}
