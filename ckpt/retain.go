// SPDX-License-Identifier: Apache-2.0

package ckpt

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"phalanx"
)

// Policy says which published checkpoints are kept. A checkpoint is kept when any rule keeps it. Beside these rules there
// are those that no policy can switch off, see Rule.
type Policy struct {
	KeepLast   int           // the newest so many; 0: no such rule
	EverySteps phalanx.Step  // those whose step is a multiple; 0: no such rule
	EveryTime  time.Duration // the first in each window of this length, by the time it was published at; 0: no such rule
	MinAge     time.Duration // those that are younger; 0: no such rule
}

// Validate reports a policy that cannot be meant.
func (p Policy) Validate() error {
	switch {
	case p.KeepLast < 0:
		return fmt.Errorf("keep the last %d checkpoints: give 0 or more", p.KeepLast)
	case p.EveryTime < 0:
		return fmt.Errorf("keep one checkpoint every %s: give a time above 0", p.EveryTime)
	case p.MinAge < 0:
		return fmt.Errorf("keep what is younger than %s: give a time above 0", p.MinAge)
	}
	return nil
}

// Rule is why a checkpoint is kept.
type Rule string

// The rules. Those of the policy come first; the others hold always.
const (
	RuleLast  Rule = "last"
	RuleSteps Rule = "steps"
	RuleTime  Rule = "time"
	RuleYoung Rule = "young"

	RuleDurable    Rule = "durable"    // the two newest whole ones of the lineage, and whatever is newer and not whole
	RuleVerified   Rule = "verified"   // the newest that was verified, by the deepest level that any was
	RulePin        Rule = "pin"        // somebody pinned it
	RuleHold       Rule = "hold"       // somebody needs it until some time
	RuleUnreadable Rule = "unreadable" // its commit object, or what is beside it, cannot be read: what it is is not known
)

// MinDurable is how many published checkpoints no policy goes below.
const MinDurable = 2

// Reason is one rule that keeps a checkpoint, in words too.
type Reason struct {
	Rule Rule   `json:"rule"`
	Text string `json:"text"`
}

// Decision is what a policy says about one number.
type Decision struct {
	Number  uint64
	Attempt Attempt  // the zero value when the commit object cannot be read
	Keep    bool     // false: may be forgotten
	Reasons []Reason // every rule that keeps it; empty when it is not kept
	Why     string   // why no rule of the policy keeps it; "" when it is kept
}

// Protected reports whether a rule keeps it that no policy can switch off.
func (d *Decision) Protected() bool {
	return slices.ContainsFunc(d.Reasons, func(r Reason) bool {
		return !slices.Contains([]Rule{RuleLast, RuleSteps, RuleTime, RuleYoung}, r.Rule)
	})
}

// Words are the reasons in one line.
func (d *Decision) Words() string {
	if !d.Keep {
		return d.Why
	}
	words := make([]string, len(d.Reasons))
	for i, r := range d.Reasons {
		words[i] = r.Text
	}
	return strings.Join(words, "; ")
}

// Inventory is all that retention knows of a job: what TakeInventory has read.
type Inventory struct {
	Job      string
	Records  []Record  // as List gives them, without those that are settled
	Settled  *Mark     // which numbers were swept before, and are left out; nil: none is
	Problems []Problem // likewise
	Marks    *Marks
	Folders  []Attempt        // attempts that have objects
	Damaged  map[uint64]error // published ones that are known not to be whole
	// OffLineage are published ones that the job's present lineage left by a rewind. They are kept and dropped like others,
	// and are not counted among those that the job could go back to.
	OffLineage map[uint64]bool
}

// leftByBranches finds what later branches certainly left, from the records alone: what an older branch saved at a step that
// a newer branch has saved too, or passed. Where a branch begins is not in the records, so it is a lower bound.
func leftByBranches(records []Record) map[uint64]bool {
	left := map[uint64]bool{}
	type start struct {
		branch uint64
		first  phalanx.Step
	}
	var newer []start // branches seen so far, from the newest record down
	for _, r := range slices.Backward(records) {
		step := r.Attempt().Step
		i := slices.IndexFunc(newer, func(s start) bool { return s.branch == r.Branch() })
		if slices.ContainsFunc(newer, func(s start) bool { return s.branch > r.Branch() && s.first <= step }) {
			left[r.Number] = true
			continue
		}
		if i < 0 {
			newer = append(newer, start{r.Branch(), step})
		} else {
			newer[i].first = min(newer[i].first, step)
		}
	}
	return left
}

// judge holds what Decide looks at more than once.
type judge struct {
	Policy
	inv       *Inventory
	now       time.Time
	suspect   map[uint64]bool
	published []Record // that are not suspect, ascending
	verified  map[uint64]bool
	last      map[uint64]bool
	durable   map[uint64]bool
	first     map[int64]uint64 // window → number
}

// Decide says of every number that is published, or may be, whether it is kept and why, in ascending order. It is pure.
func (p Policy) Decide(inv *Inventory, now time.Time) []Decision {
	j := &judge{Policy: p, inv: inv, now: now, suspect: map[uint64]bool{}}
	for _, x := range inv.Problems {
		j.suspect[x.Number] = true
		if x.Link && x.Number > 1 {
			j.suspect[x.Number-1] = true
		}
	}
	for _, r := range inv.Records {
		if r.Commit != nil && !j.suspect[r.Number] {
			j.published = append(j.published, r)
		}
	}
	j.last = j.newest(p.KeepLast, func(r Record) bool { return inv.Damaged[r.Number] == nil })
	j.durable = j.newest(MinDurable, func(r Record) bool { return inv.Damaged[r.Number] == nil && !inv.OffLineage[r.Number] })
	j.verified = j.newestVerified()
	j.first = j.firstOfWindows()
	return j.decisions()
}

// newest are the newest so many that count, and whatever is newer than the oldest of them without counting because it is
// damaged: it may be mended. The newest record is among them in any case.
func (j *judge) newest(n int, counts func(Record) bool) map[uint64]bool {
	kept := map[uint64]bool{}
	for i, r := range slices.Backward(j.published) {
		if n <= 0 {
			break
		}
		if counts(r) {
			n--
			kept[r.Number] = true
		} else if j.inv.Damaged[r.Number] != nil || i == len(j.published)-1 {
			kept[r.Number] = true
		}
	}
	return kept
}

// newestVerified is the newest that was verified by the deepest level that any whole one was, and the same among those of
// the lineage alone.
func (j *judge) newestVerified() map[uint64]bool {
	kept := map[uint64]bool{}
	for _, lineageOnly := range []bool{false, true} {
		depth, number := 0, uint64(0)
		for _, r := range j.published {
			m := j.inv.Marks.Verified[r.Number]
			if m == nil || !m.OK || m.SHA256 != r.SHA256 || j.inv.Damaged[r.Number] != nil || lineageOnly && j.inv.OffLineage[r.Number] {
				continue
			}
			if d := m.Level.Depth(); d >= depth {
				depth, number = d, r.Number
			}
		}
		if number != 0 {
			kept[number] = true
		}
	}
	return kept
}

// firstOfWindows finds the first whole one in each window of EveryTime.
func (j *judge) firstOfWindows() map[int64]uint64 {
	first := map[int64]uint64{}
	if j.EveryTime <= 0 {
		return first
	}
	for _, r := range j.published {
		w := window(r.Commit.UnixNS, j.EveryTime)
		if _, taken := first[w]; !taken && j.inv.Damaged[r.Number] == nil {
			first[w] = r.Number
		}
	}
	return first
}

// window counts windows since 1970, rounding down for times before it too.
func window(unixNS int64, length time.Duration) int64 {
	w := unixNS / int64(length)
	if unixNS%int64(length) < 0 {
		w--
	}
	return w
}

func (j *judge) decisions() []Decision {
	var all []Decision
	known := map[uint64]Record{}
	for _, r := range j.inv.Records {
		known[r.Number] = r
	}
	for _, r := range j.published {
		all = append(all, j.decide(r))
	}
	for n := range j.suspect {
		r, readable := known[n]
		if readable && r.Commit == nil {
			continue // a stub: not published whatever it says
		}
		d := Decision{Number: n, Keep: true, Reasons: []Reason{{RuleUnreadable, "its commit object is damaged, or the one beside it: kept, with all that it may name"}}}
		if readable {
			d.Attempt = r.Attempt()
		}
		all = append(all, d)
	}
	slices.SortFunc(all, func(a, b Decision) int { return compareNumbers(a.Number, b.Number) })
	return all
}

func compareNumbers(a, b uint64) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

// decide asks every rule about one published checkpoint.
func (j *judge) decide(r Record) Decision {
	d := Decision{Number: r.Number, Attempt: r.Attempt()}
	var against []string
	rule := func(on, keeps bool, rule Rule, text, not string) {
		switch {
		case on && keeps:
			d.Reasons = append(d.Reasons, Reason{rule, text})
		case on:
			against = append(against, not)
		}
	}
	step := r.Commit.Step
	rule(j.KeepLast > 0, j.last[r.Number], RuleLast, fmt.Sprintf("one of the newest %d", j.KeepLast), fmt.Sprintf("not one of the newest %d", j.KeepLast))
	rule(j.EverySteps > 0, j.EverySteps > 0 && step%j.EverySteps == 0, RuleSteps,
		fmt.Sprintf("its step is a multiple of %d", j.EverySteps), fmt.Sprintf("step %d is no multiple of %d", step, j.EverySteps))
	rule(j.EveryTime > 0, j.EveryTime > 0 && j.first[window(r.Commit.UnixNS, max(j.EveryTime, 1))] == r.Number, RuleTime,
		fmt.Sprintf("the first within its %s", j.EveryTime), fmt.Sprintf("not the first within its %s", j.EveryTime))
	rule(j.MinAge > 0, j.now.Sub(time.Unix(0, r.Commit.UnixNS)) < j.MinAge, RuleYoung,
		fmt.Sprintf("younger than %s", j.MinAge), fmt.Sprintf("older than %s", j.MinAge))
	rule(j.durable[r.Number], true, RuleDurable, fmt.Sprintf("one of the %d newest that the job can go back to", MinDurable), "")
	j.marks(r.Number, rule)
	d.Keep = len(d.Reasons) > 0
	if !d.Keep {
		d.Why = strings.Join(against, "; ")
		if d.Why == "" {
			d.Why = "no rule keeps it"
		}
	}
	return d
}

// marks asks the rules that follow from marks.
func (j *judge) marks(number uint64, rule func(on, keeps bool, rule Rule, text, not string)) {
	m := j.inv.Marks
	if pin := m.Pins[number]; pin != nil {
		rule(true, true, RulePin, "pinned"+in(pin.By, pin.Why), "")
	}
	for _, h := range m.Holds[number] {
		until := time.Unix(0, h.UntilUnixNS).UTC()
		rule(until.After(j.now), true, RuleHold, fmt.Sprintf("held for %s until %s%s", h.Owner, until.Format(time.RFC3339), in("", h.Why)), "")
	}
	rule(j.verified[number], true, RuleVerified, "the newest that was verified", "")
	for _, k := range []struct {
		kind MarkKind
		rule Rule
	}{{PinMark, RulePin}, {HoldMark, RuleHold}, {VerifiedMark, RuleVerified}} {
		if p := m.problem(k.kind, number); p != nil {
			rule(true, true, k.rule, fmt.Sprintf("%s is damaged: what it may say is taken for true", p.Key), "")
		}
	}
}

// in puts who and why behind a word.
func in(by, why string) string {
	s := ""
	if by != "" {
		s += " by " + by
	}
	if why != "" {
		s += ": " + why
	}
	return s
}

// Abandoned returns the attempts among the folders that can never be published any more and never were, because a record
// fences them: an older generation, or the same one at a step that is not newer. Records are in order of numbers, as List
// gives them; a number that is missing among them may have published anything that the record before it does not fence. No
// clock is involved. It is pure.
func Abandoned(records []Record, folders []Attempt) []Attempt {
	unbroken := 0
	for unbroken < len(records) && records[unbroken].Number == uint64(unbroken)+1 {
		unbroken++
	}
	if unbroken == 0 {
		return nil
	}
	fence := records[unbroken-1].Attempt()
	published := map[Attempt]bool{}
	for _, r := range records {
		published[r.Attempt()] = true
	}
	var gone []Attempt
	for _, a := range folders {
		g := a.Generation.Compare(fence.Generation)
		if !published[a] && (g < 0 || g == 0 && a.Step <= fence.Step) {
			gone = append(gone, a)
		}
	}
	return gone
}

// suspects are the numbers whose records may not say what was published: damaged ones, and both ends of a link that does not
// hold. kept says so. An error that is not about the stored bytes proves nothing, and is returned.
func suspects(problems []Problem) (numbers map[uint64]bool, kept, err error) {
	numbers = map[uint64]bool{}
	var all []error
	for _, p := range problems {
		if !isDamage(p.Err) && !errors.Is(p.Err, ErrFormat) {
			return nil, nil, p
		}
		numbers[p.Number] = true
		if p.Link && p.Number > 1 {
			numbers[p.Number-1] = true
		}
		all = append(all, p)
	}
	return numbers, errors.Join(all...), nil
}
