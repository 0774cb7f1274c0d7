// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"strconv"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"phalanx"
	"phalanx/ckpt"
	"phalanx/cmd/phalanx/internal/settings"
	"phalanx/node"
)

// decided is what forget does with one checkpoint.
type decided struct {
	found
	Action  string        `json:"action"`            // keep or forget
	Reasons []ckpt.Reason `json:"reasons,omitempty"` // all that keep it
	Why     string        `json:"why,omitempty"`     // why it is forgotten
}

// forgotten is the answer of forget.
type forgotten struct {
	DryRun      bool      `json:"dry_run"`
	Checkpoints []decided `json:"checkpoints"`
	Forgotten   []uint64  `json:"forgotten"` // numbers; empty with dry_run
	Kept        []uint64  `json:"kept"`      // were to be forgotten, and were pinned or held at that moment
	UntilUnixNS int64     `json:"until_unix_ns,omitempty"`
}

func newCkptForget(a *app) *cobra.Command {
	r := &reader{app: a}
	p := policyFlags{reader: r}
	dry, why, grace := false, "", settings.Duration(ckpt.DefaultGrace)
	c := &cobra.Command{
		Use: "forget [STEP|FOLDER …]", Args: cobra.ArbitraryArgs,
		Short: "Forget checkpoints, by name or by a policy; their data stay for a while",
		Long: `Forget hides checkpoints from all readers. Their data stay until the grace is over and gc runs; until then phalanx ckpt undelete
puts them back. Without names, what the policy of the flags does not keep is forgotten. Pinned and held checkpoints, the last
verified one and the two newest whole ones are always kept.`,
		RunE: func(c *cobra.Command, args []string) error {
			byFlag := p.given(c) // before variables and the file are read
			if err := checkWhy(why); err != nil {
				return err
			}
			s, err := r.openForChange(c)
			if err != nil {
				return err
			}
			switch {
			case grace < 0:
				return problem(node.CodeUsage, "give a duration such as 24h, or 0", "--grace %s", grace.String())
			case len(args) > 0 && byFlag:
				return problem(node.CodeUsage, "name checkpoints, or give a policy", "both checkpoints and a policy")
			case len(args) == 0 && !p.given(c):
				return problem(node.CodeUsage, "name checkpoints, or give a policy: --keep N, --keep-every STEPS, --keep-time D", "nothing says what to forget")
			}
			v, err := r.forget(c, s, &p, args, ckpt.ForgetOptions{Now: time.Now(), Grace: time.Duration(grace), By: a.operator()}, dry, why)
			if err != nil {
				return err
			}
			if r.asJSON {
				return a.printJSON(v)
			}
			return a.printForgotten(v)
		},
	}
	r.bind(c)
	p.bind(c)
	c.Flags().BoolVar(&dry, "dry-run", false, "say what would be done and do nothing")
	c.Flags().Var(&grace, "grace", "their data stay for `D` at least")
	settings.OwnMeaning(c.Flags(), "grace")
	c.Flags().StringVar(&why, "why", "", "say `TEXT` in what is left of them")
	return c
}

func (r *reader) forget(c *cobra.Command, s ckpt.Store, p *policyFlags, args []string, o ckpt.ForgetOptions, dry bool, why string) (*forgotten, error) {
	ctx := c.Context()
	inv, err := ckpt.TakeInventory(ctx, s, r.settings.Job, nil)
	if err != nil {
		return nil, r.ckptError(err)
	}
	r.tell(inv)
	var drops []ckpt.Drop
	decisions := (ckpt.Policy{}).Decide(inv, o.Now)
	if len(args) == 0 {
		policy, err := p.policy(c)
		if err != nil {
			return nil, err
		}
		decisions = policy.Decide(inv, o.Now)
		for _, d := range ckpt.Drops(decisions) {
			if why != "" {
				d.Why = why
			}
			drops = append(drops, d)
		}
	} else if drops, err = r.dropsOf(ctx, s, args, why); err != nil {
		return nil, err
	}
	v := &forgotten{DryRun: dry, Checkpoints: []decided{}, Forgotten: []uint64{}, Kept: []uint64{}}
	byNumber := map[uint64]ckpt.Drop{}
	for _, d := range drops {
		byNumber[d.Number] = d
	}
	for _, d := range decisions {
		one := decided{found: found{Number: d.Number, Step: d.Attempt.Step, Generation: d.Attempt.Generation, State: "published"}, Action: "keep", Reasons: d.Reasons}
		for _, rec := range inv.Records {
			if rec.Number == d.Number && rec.Commit != nil {
				one.found = describe(rec.Commit)
			}
		}
		x, drop := byNumber[d.Number]
		switch {
		case drop:
			one.Action, one.Why = "forget", x.Why
			if d.Keep {
				one.Action = "keep"
			}
		case len(args) > 0:
			continue
		}
		v.Checkpoints = append(v.Checkpoints, one)
	}
	if len(drops) > 0 {
		v.UntilUnixNS = o.Now.Add(o.Grace).UnixNano()
	}
	if dry {
		for _, d := range decisions {
			if _, drop := byNumber[d.Number]; drop && d.Keep {
				return nil, r.changeError(fmt.Errorf("checkpoint %d (step %d) is kept: %s: %w", d.Number, d.Attempt.Step, d.Words(), ckpt.ErrProtected))
			}
		}
		return v, nil
	}
	done, err := ckpt.Forget(ctx, s, inv, drops, o)
	if err != nil {
		return nil, r.changeError(err)
	}
	v.Forgotten, v.Kept = append(v.Forgotten, done.Numbers...), append(v.Kept, done.Kept...)
	return v, nil
}

// dropsOf resolves the names of checkpoints that are to be forgotten.
func (r *reader) dropsOf(ctx context.Context, s ckpt.Store, args []string, why string) ([]ckpt.Drop, error) {
	var drops []ckpt.Drop
	seen := map[uint64]bool{}
	for _, arg := range args {
		rec, err := r.refer(ctx, s, arg, isPublished)
		if err != nil {
			return nil, err
		}
		if rec.Stub != nil {
			return nil, removed(rec.Stub)
		}
		if !seen[rec.Number] {
			seen[rec.Number] = true
			drops = append(drops, ckpt.Drop{Number: rec.Number, Why: why})
		}
	}
	return drops, nil
}

func (a *app) printForgotten(v *forgotten) error {
	t := tabwriter.NewWriter(a.stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "NUMBER\tSTEP\tGENERATION\tWRITTEN\tBYTES\tACTION\tREASONS")
	for _, d := range v.Checkpoints {
		why := d.Why
		if d.Action == "keep" {
			why = (&ckpt.Decision{Keep: true, Reasons: d.Reasons}).Words()
		}
		say(t, "%d\t%d\t%s\t%s\t%d\t%s\t%s\n", d.Number, d.Step, d.Generation, stamp(d.UnixNS), d.Bytes, d.Action, why)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	switch {
	case v.DryRun:
		fmt.Fprintln(a.stderr, "phalanx: dry run: nothing was changed")
	case len(v.Forgotten) > 0:
		say(a.stderr, "phalanx: %d forgotten; until %s phalanx ckpt undelete puts them back, then phalanx ckpt gc deletes their data\n", len(v.Forgotten), stamp(v.UntilUnixNS))
	}
	for _, n := range v.Kept {
		say(a.stderr, "phalanx: checkpoint %d was pinned or held at the same time and is kept\n", n)
	}
	return nil
}

// sweepLine is what gc does about one number, or one attempt.
type sweepLine struct {
	Number     uint64             `json:"number,omitempty"` // absent: never published
	Step       phalanx.Step       `json:"step"`
	Generation phalanx.Generation `json:"generation"`
	Folder     string             `json:"folder"`
	State      string             `json:"state"` // forgotten, removed or abandoned
	SinceNS    int64              `json:"since_unix_ns,omitempty"`
	Action     string             `json:"action"` // sweep or keep
	Why        string             `json:"why"`
}

// collected is the answer of gc.
type collected struct {
	DryRun  bool        `json:"dry_run"`
	Items   []sweepLine `json:"items"`
	Swept   []string    `json:"swept"` // folders that are empty now
	Objects int         `json:"objects"`
	Bytes   int64       `json:"size_bytes"`
	Foreign []string    `json:"foreign"` // objects in those folders that no save writes; they stay
}

func newCkptGC(a *app) *cobra.Command {
	r := &reader{app: a}
	dry, grace := false, settings.Duration(0)
	c := &cobra.Command{
		Use: "gc", Args: cobra.NoArgs,
		Short: "Delete the data of forgotten checkpoints and of abandoned saves whose grace is over",
		Long: `Gc deletes the data of checkpoints that were forgotten, when the time is over that was promised then, and of saves that can never
be published any more, a day after a gc has seen them so for the first time. With --grace both count from there with D. It may run beside
the job: what it deletes nobody can get back any more, whoever deletes it.`,
		RunE: func(c *cobra.Command, _ []string) error {
			s, err := r.openForChange(c)
			if err != nil {
				return err
			}
			if grace < 0 {
				return problem(node.CodeUsage, "give a duration such as 24h, or 0", "--grace %s", grace.String())
			}
			o := ckpt.GCOptions{Now: time.Now(), AbandonedGrace: ckpt.DefaultGrace, By: a.operator()}
			if c.Flags().Changed("grace") {
				d := time.Duration(grace)
				o.Grace, o.AbandonedGrace = &d, d
			}
			v, err := r.collect(c.Context(), s, o, dry)
			if v != nil && (err == nil || v.Objects > 0) {
				if r.asJSON {
					err = firstOf(err, a.printJSON(v))
				} else {
					err = firstOf(err, a.printCollected(v))
				}
			}
			return err
		},
	}
	r.bind(c)
	c.Flags().BoolVar(&dry, "dry-run", false, "say what would be deleted and do nothing")
	c.Flags().Var(&grace, "grace", "count `D` from when a checkpoint was forgotten or a save seen to be abandoned (default: what was promised, and 24h)")
	settings.OwnMeaning(c.Flags(), "grace")
	return c
}

func firstOf(first, second error) error {
	if first != nil {
		return first
	}
	return second
}

// collect plans and, unless it is a dry run, deletes. What was deleted before an error is in the answer too.
func (r *reader) collect(ctx context.Context, s ckpt.Store, o ckpt.GCOptions, dry bool) (*collected, error) {
	inv, err := ckpt.TakeInventory(ctx, s, r.settings.Job, nil)
	if err != nil {
		return nil, r.ckptError(err)
	}
	r.tell(inv)
	v := &collected{DryRun: dry, Items: []sweepLine{}, Swept: []string{}, Foreign: []string{}}
	for _, x := range ckpt.PlanSweep(inv, o.Now, o.Grace, o.AbandonedGrace) {
		one := sweepLine{Number: x.Number, Step: x.Attempt.Step, Generation: x.Attempt.Generation, Folder: x.Attempt.Folder(), State: "removed", Action: "keep", Why: x.Why}
		switch {
		case x.Number == 0:
			one.State = "abandoned"
		case x.Phase == ckpt.Forgotten:
			one.State = "forgotten"
		}
		if x.Due {
			one.Action = "sweep"
		}
		if !x.Since.IsZero() {
			one.SinceNS = x.Since.UnixNano()
		}
		v.Items = append(v.Items, one)
	}
	if dry {
		return v, nil
	}
	done, err := ckpt.GC(ctx, s, inv, o)
	v.Objects, v.Bytes, v.Foreign = done.Objects, done.Bytes, append(v.Foreign, done.Foreign...)
	for _, at := range done.Swept {
		v.Swept = append(v.Swept, at.Folder())
	}
	for _, x := range done.Passed {
		for i := range v.Items {
			if v.Items[i].Number == x.Number && x.Number != 0 {
				v.Items[i].Action, v.Items[i].Why = "keep", "somebody pinned it, put it back or took it up at the same time"
			}
		}
	}
	if err != nil {
		return v, r.changeError(err)
	}
	return v, nil
}

func (a *app) printCollected(v *collected) error {
	t := tabwriter.NewWriter(a.stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "NUMBER\tSTEP\tSTATE\tSINCE\tACTION\tFOLDER\tWHY")
	for _, x := range v.Items {
		number := "-"
		if x.Number > 0 {
			number = strconv.FormatUint(x.Number, 10)
		}
		say(t, "%s\t%d\t%s\t%s\t%s\t%s\t%s\n", number, x.Step, x.State, stamp(x.SinceNS), x.Action, x.Folder, x.Why)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for _, key := range v.Foreign {
		say(a.stderr, "phalanx: %s is no object of a save and stays\n", key)
	}
	if v.DryRun {
		_, err := fmt.Fprintln(a.stderr, "phalanx: dry run: nothing was changed")
		return err
	}
	err := tell(a.stderr, "phalanx: %d folders swept, %d objects, %d bytes\n", len(v.Swept), v.Objects, v.Bytes)
	return err
}
