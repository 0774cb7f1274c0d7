// SPDX-License-Identifier: Apache-2.0

package ckpt_test

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"phalanx"
	"phalanx/ckpt"
	"phalanx/ckpt/mem"
)

// noon is the present of tests; checkpoints of helpers are published shortly after 1970.
var noon = time.Unix(1_700_000_000, 0).UTC()

func hash(n uint64) string { return fmt.Sprintf("%064x", n) }

// drawInventory draws any history of a job: branches, stubs, damage and marks.
func drawInventory(t *rapid.T) *ckpt.Inventory {
	inv := &ckpt.Inventory{Job: "job", Damaged: map[uint64]error{}, OffLineage: map[uint64]bool{}, Marks: &ckpt.Marks{
		Pins: map[uint64]*ckpt.Mark{}, Holds: map[uint64][]*ckpt.Mark{}, Verified: map[uint64]*ckpt.Mark{}, Seen: map[string]*ckpt.Mark{}}}
	for i := range rapid.IntRange(0, 14).Draw(t, "records") {
		n := uint64(i) + 1
		step := phalanx.Step(rapid.IntRange(1, 40).Draw(t, "step"))
		at := noon.Add(-time.Duration(rapid.IntRange(-3, 300).Draw(t, "minutes")) * time.Minute).UnixNano()
		r := ckpt.Record{Number: n, SHA256: hash(n)}
		name := fmt.Sprintf("step-%d-g1-a1.%d", step, n)
		switch rapid.IntRange(0, 9).Draw(t, "kind") {
		case 0:
			r.Stub = &ckpt.Stub{Format: 2, Number: n, Job: "job", Attempt: name, Phase: ckpt.Sweeping}
		case 1:
			inv.Problems = append(inv.Problems, ckpt.Problem{Number: n, Err: ckpt.ErrCorrupt})
			continue
		case 2:
			inv.Problems = append(inv.Problems, ckpt.Problem{Number: n, Err: ckpt.ErrCorrupt, Link: true})
			fallthrough
		default:
			r.Commit = &ckpt.Commit{Number: n, Job: "job", Attempt: name, Step: step, UnixNS: at}
		}
		inv.Records = append(inv.Records, r)
		if rapid.IntRange(0, 5).Draw(t, "damaged") == 0 {
			inv.Damaged[n] = ckpt.ErrIncomplete
		}
		inv.OffLineage[n] = rapid.IntRange(0, 4).Draw(t, "off lineage") == 0
		switch rapid.IntRange(0, 12).Draw(t, "mark") {
		case 0:
			inv.Marks.Pins[n] = &ckpt.Mark{Kind: ckpt.PinMark, Number: n}
		case 1:
			until := noon.Add(time.Duration(rapid.IntRange(-5, 5).Draw(t, "until")) * time.Minute)
			inv.Marks.Holds[n] = []*ckpt.Mark{{Kind: ckpt.HoldMark, Number: n, Owner: "o", UntilUnixNS: until.UnixNano()}}
		case 2, 3, 4:
			level := rapid.SampledFrom([]ckpt.Level{ckpt.LevelManifest, ckpt.LevelHead, ckpt.LevelData}).Draw(t, "level")
			inv.Marks.Verified[n] = &ckpt.Mark{Kind: ckpt.VerifiedMark, Number: n, SHA256: hash(n), Level: level, OK: rapid.Bool().Draw(t, "ok")}
		case 5:
			kind := rapid.SampledFrom([]ckpt.MarkKind{ckpt.PinMark, ckpt.HoldMark, ckpt.VerifiedMark}).Draw(t, "damaged mark")
			inv.Marks.Problems = append(inv.Marks.Problems, ckpt.MarkProblem{Kind: kind, Number: n, Err: ckpt.ErrCorrupt})
		}
	}
	return inv
}

func drawPolicy(t *rapid.T) ckpt.Policy {
	return ckpt.Policy{
		KeepLast:   rapid.IntRange(0, 5).Draw(t, "last"),
		EverySteps: phalanx.Step(rapid.IntRange(0, 7).Draw(t, "every steps")),
		EveryTime:  time.Duration(rapid.IntRange(0, 90).Draw(t, "every time")) * time.Minute,
		MinAge:     time.Duration(rapid.IntRange(0, 60).Draw(t, "min age")) * time.Minute,
	}
}

// TestPolicyInvariants: whatever the history and the policy, what must be kept is kept, each rule is named wherever it keeps,
// and what no rule keeps is dropped.
func TestPolicyInvariants(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		inv, p := drawInventory(t), drawPolicy(t)
		decisions := p.Decide(inv, noon)
		if again := p.Decide(inv, noon); fmt.Sprint(again) != fmt.Sprint(decisions) {
			t.Fatal("two decisions about the same differ")
		}
		kept, reasons := map[uint64]bool{}, map[uint64][]ckpt.Rule{}
		last := uint64(0)
		for _, d := range decisions {
			if d.Number <= last {
				t.Fatalf("number %d after %d", d.Number, last)
			}
			last = d.Number
			if d.Keep != (len(d.Reasons) > 0) || d.Keep != (d.Why == "") || d.Words() == "" {
				t.Fatalf("%+v", d)
			}
			kept[d.Number] = d.Keep
			for _, r := range d.Reasons {
				reasons[d.Number] = append(reasons[d.Number], r.Rule)
			}
		}
		for _, d := range (ckpt.Policy{}).Decide(inv, noon) {
			if d.Keep && !kept[d.Number] {
				t.Fatalf("a policy dropped %d, which is kept without any: %s", d.Number, d.Words())
			}
		}
		suspect := map[uint64]bool{}
		for _, x := range inv.Problems {
			suspect[x.Number] = true
			suspect[x.Number-1] = suspect[x.Number-1] || x.Link && x.Number > 1
			if !x.Link && !kept[x.Number] {
				t.Fatalf("unreadable %d is not kept", x.Number)
			}
		}
		has := func(n uint64, rule ckpt.Rule) bool { return slices.Contains(reasons[n], rule) }
		var published []ckpt.Record
		for _, r := range inv.Records {
			if r.Commit != nil && !suspect[r.Number] {
				published = append(published, r)
			} else if r.Commit != nil && !kept[r.Number] {
				t.Fatalf("suspect %d is not kept", r.Number)
			}
		}
		durable, whole := 0, 0
		windows := map[int64]bool{}
		for _, r := range published {
			if _, decided := kept[r.Number]; !decided {
				t.Fatalf("no decision about %d", r.Number)
			}
		}
		for _, r := range slices.Backward(published) {
			n := r.Number
			ok := inv.Damaged[n] == nil
			if ok && !inv.OffLineage[n] {
				if durable++; durable <= ckpt.MinDurable && !has(n, ckpt.RuleDurable) {
					t.Fatalf("%d is one of the newest that the job can go back to, and is not kept for it", n)
				}
			}
			if ok {
				if whole++; (whole <= p.KeepLast) != has(n, ckpt.RuleLast) {
					t.Fatalf("%d is whole, and number %d of them from the newest; last %d: %v", n, whole, p.KeepLast, reasons[n])
				}
			}
			if want := p.EverySteps > 0 && r.Commit.Step%p.EverySteps == 0; want != has(n, ckpt.RuleSteps) {
				t.Fatalf("step %d, every %d: %v", r.Commit.Step, p.EverySteps, reasons[n])
			}
			if want := p.MinAge > 0 && noon.Sub(time.Unix(0, r.Commit.UnixNS)) < p.MinAge; want != has(n, ckpt.RuleYoung) {
				t.Fatalf("%d: young %v", n, reasons[n])
			}
			if inv.Marks.Pins[n] != nil && !has(n, ckpt.RulePin) {
				t.Fatalf("pinned %d: %v", n, reasons[n])
			}
			for _, h := range inv.Marks.Holds[n] {
				if want := h.UntilUnixNS > noon.UnixNano(); want != has(n, ckpt.RuleHold) {
					t.Fatalf("held %d: %v", n, reasons[n])
				}
			}
		}
		if len(published) > 0 && !kept[published[len(published)-1].Number] {
			t.Fatal("the newest is dropped")
		}
		for _, x := range inv.Marks.Problems {
			if _, decided := kept[x.Number]; decided && !kept[x.Number] {
				t.Fatalf("%d has a damaged %s and is dropped", x.Number, x.Kind)
			}
		}
		checkVerified(t, inv, published, has)
		for _, r := range published { // from the oldest: the first whole one of each window, and no other
			if p.EveryTime <= 0 || inv.Damaged[r.Number] != nil {
				continue
			}
			w := time.Unix(0, r.Commit.UnixNS).UnixNano() / int64(p.EveryTime)
			if has(r.Number, ckpt.RuleTime) == windows[w] {
				t.Fatalf("%d in window %d, taken %v: %v", r.Number, w, windows[w], reasons[r.Number])
			}
			windows[w] = true
		}
	})
}

// checkVerified: of what was verified by the deepest level that any was, the newest is kept.
func checkVerified(t *rapid.T, inv *ckpt.Inventory, published []ckpt.Record, has func(uint64, ckpt.Rule) bool) {
	best, number := 0, uint64(0)
	for _, r := range published {
		m := inv.Marks.Verified[r.Number]
		if m != nil && m.OK && inv.Damaged[r.Number] == nil && m.Level.Depth() >= best {
			best, number = m.Level.Depth(), r.Number
		}
	}
	if number != 0 && !has(number, ckpt.RuleVerified) {
		t.Fatalf("%d is the last verified one and not kept for it", number)
	}
}

// TestPolicyReasons shows the words.
func TestPolicyReasons(t *testing.T) {
	inv := &ckpt.Inventory{Job: "job", Damaged: map[uint64]error{}, OffLineage: map[uint64]bool{}, Marks: &ckpt.Marks{
		Pins:     map[uint64]*ckpt.Mark{1: {Kind: ckpt.PinMark, Number: 1, By: "ada", Why: "paper"}},
		Holds:    map[uint64][]*ckpt.Mark{2: {{Kind: ckpt.HoldMark, Owner: "eval", UntilUnixNS: noon.Add(time.Hour).UnixNano()}}},
		Verified: map[uint64]*ckpt.Mark{3: {Kind: ckpt.VerifiedMark, Number: 3, SHA256: hash(3), Level: ckpt.LevelData, OK: true}},
	}}
	for n := uint64(1); n <= 7; n++ {
		inv.Records = append(inv.Records, ckpt.Record{Number: n, SHA256: hash(n), Commit: &ckpt.Commit{Number: n, Job: "job",
			Attempt: fmt.Sprintf("step-%d-g1-a1.%d", n*10, n), Step: phalanx.Step(n * 10), UnixNS: noon.Add(time.Duration(n) * time.Minute).UnixNano()}})
	}
	var got []string
	for _, d := range (ckpt.Policy{KeepLast: 1, EverySteps: 40, EveryTime: time.Hour}).Decide(inv, noon) {
		got = append(got, fmt.Sprintf("%d %v %s", d.Number, d.Keep, d.Words()))
	}
	want := []string{
		"1 true the first within its 1h0m0s; pinned by ada: paper",
		"2 true held for eval until 2023-11-14T23:13:20Z",
		"3 true the newest that was verified",
		"4 true its step is a multiple of 40",
		"5 false not one of the newest 1; step 50 is no multiple of 40; not the first within its 1h0m0s",
		"6 true one of the 2 newest that the job can go back to",
		"7 true one of the newest 1; one of the 2 newest that the job can go back to",
	}
	if !slices.Equal(got, want) {
		t.Fatalf("%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// inventory takes stock or fails.
func inventory(t testing.TB, s ckpt.Store) *ckpt.Inventory {
	t.Helper()
	inv, err := ckpt.TakeInventory(t.Context(), s, "job", nil)
	if err != nil {
		t.Fatal(err)
	}
	return inv
}

// forget forgets these numbers at noon.
func forget(t testing.TB, s ckpt.Store, grace time.Duration, numbers ...uint64) (ckpt.ForgetResult, error) {
	t.Helper()
	var drops []ckpt.Drop
	for _, n := range numbers {
		drops = append(drops, ckpt.Drop{Number: n, Why: "test"})
	}
	return ckpt.Forget(t.Context(), s, inventory(t, s), drops, ckpt.ForgetOptions{Now: noon, Grace: grace, By: "tester"})
}

// prune does what a leader does after a publish, without any grace.
func prune(t testing.TB, s ckpt.Store, keep int) (ckpt.ForgetResult, ckpt.Collected, error) {
	t.Helper()
	drops := ckpt.Drops(ckpt.Policy{KeepLast: keep}.Decide(inventory(t, s), noon))
	done, err := ckpt.Forget(t.Context(), s, inventory(t, s), drops, ckpt.ForgetOptions{Now: noon})
	if err != nil {
		return done, ckpt.Collected{}, err
	}
	swept, err := ckpt.GC(t.Context(), s, inventory(t, s), ckpt.GCOptions{Now: noon})
	return done, swept, err
}

func TestForgetAndCollect(t *testing.T) {
	s := mem.New()
	states := series(t, s, 4)
	ctx := t.Context()
	// An attempt that died before it was published, and one that may still be.
	if _, err := shards(t, s, attempt(3, 1, 77), states[0], 1, ckpt.PlanOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := shards(t, s, attempt(5, 1, 5), states[0], 1, ckpt.PlanOptions{}); err != nil {
		t.Fatal(err)
	}
	done, swept, err := prune(t, s, 3)
	if err != nil || !slices.Equal(done.Numbers, []uint64{1}) || len(swept.Swept) != 2 || swept.Bytes == 0 {
		t.Fatal(done, swept, err)
	}
	if left := stepsLeft(t, s); left != "2 3 4 5" {
		t.Fatal(left)
	}
	if all, err := ckpt.ListAll(ctx, s, "job/step-3-g1-a2.77"); err != nil || len(all) != 0 {
		t.Fatal("the attempt that died is left", all, err)
	}
	records, problems, err := ckpt.List(ctx, s, "job")
	if err != nil || len(problems) > 0 || len(records) != 4 || records[0].Stub == nil || records[0].Stub.At() != ckpt.Swept {
		t.Fatal(records, problems, err)
	}
	if done, swept, err := prune(t, s, 3); err != nil || swept.Objects != 0 || len(done.Numbers) != 0 {
		t.Fatal(done, swept, err)
	}
	for n, want := range map[uint64]error{0: ckpt.ErrNotFound, 1: ckpt.ErrNotFound, 3: ckpt.ErrProtected, 4: ckpt.ErrProtected, 5: ckpt.ErrNotFound} {
		if _, err := forget(t, s, 0, n); !errors.Is(err, want) {
			t.Fatalf("commit %d: %v", n, err)
		}
	}
	if r, err := save(t, s, attempt(6, 1, 6), states[0], 2); err != nil || r.Number != 5 {
		t.Fatal(r, err)
	}
}

// stepsLeft are the steps of the folders that have objects.
func stepsLeft(t testing.TB, s ckpt.Store) string {
	t.Helper()
	all, err := ckpt.ListAll(t.Context(), s, "job/step-")
	if err != nil {
		t.Fatal(err)
	}
	steps := map[string]bool{}
	for _, o := range all {
		steps[strings.Split(o.Key, "-")[1]] = true
	}
	return strings.Join(slices.Sorted(maps.Keys(steps)), " ")
}

func TestCollectGoesOnBesideDamage(t *testing.T) {
	for name, c := range map[string]struct {
		number   uint64
		from, to string // what changes in the commit object
		left     string
	}{
		"not JSON":       {3, "{", "[", "3 5 6"},
		"another number": {3, `"number": 3`, `"number": 7`, "3 5 6"},
		// It reads well and names a folder that is not the one that it published.
		"another attempt": {3, "-a2.3", "-a2.9", "3 4 5 6"},
		"the newest":      {6, "{", "[", "4 5 6"},
	} {
		s := mem.New()
		states := series(t, s, 6)
		flip(t, s, c.number, c.from, c.to)
		if name == "another attempt" {
			reseal(t, s, c.number)
		}
		_, _, err := prune(t, s, 1)
		var problem ckpt.Problem
		if !errors.As(err, &problem) {
			t.Fatalf("%s: the damage is not told: %v", name, err)
		}
		if left := stepsLeft(t, s); left != c.left {
			t.Errorf("%s: the folders of steps %s are left, want %s: %v", name, left, c.left, err)
		}
		if r, err := save(t, s, attempt(7, 1, 7), states[0], 1); err != nil || r.Number != 7 {
			t.Errorf("%s: %+v, %v", name, r, err)
		}
	}
}

func TestNothingIsDecidedWhenTheStoreCannotBeRead(t *testing.T) {
	inner := mem.New()
	series(t, inner, 3)
	for name, broken := range map[string]mem.Op{
		"a commit object": {Verb: mem.Get, Key: ckpt.CommitKey("job", 2)},
		"pins":            {Verb: mem.List, Key: "job/pins/"},
		"holds":           {Verb: mem.List, Key: "job/holds/"},
		"verifications":   {Verb: mem.List, Key: "job/verified/"},
		"folders":         {Verb: mem.List, Key: "job/step-"},
		"an object":       {Verb: mem.Stat, Key: "job/step-3-g1-a2.3/__0_0.distcp"},
	} {
		s := mem.NewFaulty(inner, func(op mem.Op) mem.Fault {
			if op.Verb == broken.Verb && op.Key == broken.Key {
				return mem.Fault{Err: errors.New("timeout")}
			}
			return mem.Fault{}
		})
		if inv, err := ckpt.TakeInventory(t.Context(), s, "job", nil); err == nil {
			t.Errorf("%s: %+v", name, inv)
		}
	}
}

// A checkpoint that was published again, because its commit object was damaged, and whose old object was put back.
func TestCollectKeepsDataThatTwoNumbersName(t *testing.T) {
	s := mem.New()
	states := series(t, s, 1)
	before := flip(t, s, 1, "{", "[")
	r, err := save(t, s, attempt(1, 1, 1), states[0], 2)
	if err != nil || r.Number != 2 {
		t.Fatal(r, err)
	}
	for i := 2; i <= 4; i++ {
		if _, err := save(t, s, attempt(i, 1, uint64(i)), states[0], 2); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Put(t.Context(), ckpt.CommitKey("job", 1), ckpt.Bytes(before)); err != nil {
		t.Fatal(err)
	}
	_, _, _ = prune(t, s, 1) // the broken link is its error
	mustRestore(t, s, r.Commit, states[0])
}
