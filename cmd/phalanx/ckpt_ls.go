// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"phalanx/ckpt"
	"phalanx/node"
)

// listed is a line of ls: a checkpoint, and what retention knows of it.
type listed struct {
	found
	Pinned   *marked       `json:"pinned,omitempty"`
	Held     []marked      `json:"held,omitempty"`
	Verified *verification `json:"verified,omitempty"`

	// Of a forgotten one.
	ForgottenUnixNS int64  `json:"forgotten_unix_ns,omitempty"`
	UntilUnixNS     int64  `json:"until_unix_ns,omitempty"` // it can be undeleted at least so long
	Why             string `json:"why,omitempty"`

	// With --reasons, of a published one.
	Keep    *bool         `json:"keep,omitempty"`
	Reasons []ckpt.Reason `json:"reasons,omitempty"`
	Dropped string        `json:"dropped,omitempty"` // why no rule keeps it
}

// marked is a pin or a hold in answers.
type marked struct {
	By          string `json:"by,omitempty"`
	Why         string `json:"why,omitempty"`
	Owner       string `json:"owner,omitempty"`
	UnixNS      int64  `json:"unix_ns,omitempty"`
	UntilUnixNS int64  `json:"until_unix_ns,omitempty"`
	Damaged     bool   `json:"damaged,omitempty"` // it cannot be read, and counts
}

// verification is what the last one found.
type verification struct {
	Level   ckpt.Level `json:"level,omitempty"`
	OK      bool       `json:"ok"`
	UnixNS  int64      `json:"unix_ns,omitempty"`
	By      string     `json:"by,omitempty"`
	Version string     `json:"version,omitempty"`
	Damaged bool       `json:"damaged,omitempty"` // the record of it cannot be read
}

// newCkptList is the verb ls.
func newCkptList(a *app) *cobra.Command {
	r := &reader{app: a}
	reasons := false
	p := policyFlags{reader: r}
	c := &cobra.Command{
		Use: "ls", Args: cobra.NoArgs,
		Short: "List the checkpoints of a job, oldest first",
		RunE: func(c *cobra.Command, _ []string) error {
			s, err := r.open(c)
			if err != nil {
				return err
			}
			var policy *ckpt.Policy
			if reasons {
				if policy, err = p.policy(c); err != nil {
					return err
				}
			} else if p.given(c) {
				return problem(node.CodeUsage, "say --reasons to see what a policy keeps", "a policy without --reasons")
			}
			list, err := r.list(c.Context(), s, policy)
			if err != nil {
				return err
			}
			if r.asJSON {
				return a.printJSON(list)
			}
			return a.printList(list, reasons)
		},
	}
	r.bind(c)
	p.bind(c)
	c.Flags().BoolVar(&reasons, "reasons", false, "say why each one is kept or not under the policy of the flags; by default that of the last run in DIR")
	return c
}

func (a *app) printList(list []listed, reasons bool) error {
	t := tabwriter.NewWriter(a.stdout, 0, 0, 2, ' ', 0)
	fmt.Fprint(t, "NUMBER\tSTEP\tGENERATION\tWRITTEN\tBYTES\tSTATE\tPINNED\tVERIFIED\tFOLDER")
	if reasons {
		fmt.Fprint(t, "\tREASONS")
	}
	fmt.Fprintln(t)
	for _, f := range list {
		number, folder := "-", f.Folder
		if f.Number > 0 {
			number = strconv.FormatUint(f.Number, 10)
		}
		if folder == "" {
			folder = "-"
		}
		say(t, "%s\t%d\t%s\t%s\t%d\t%s\t%s\t%s\t%s", number, f.Step, f.Generation, stamp(f.UnixNS), f.Bytes, f.State, f.pinned(), f.verified(), folder)
		if reasons {
			say(t, "\t%s", f.reasons())
		}
		fmt.Fprintln(t)
	}
	return t.Flush()
}

func stamp(unixNS int64) string {
	if unixNS <= 0 {
		return "-"
	}
	return time.Unix(0, unixNS).UTC().Format(time.RFC3339)
}

func (f *listed) pinned() string {
	var words []string
	if f.Pinned != nil {
		words = append(words, "pinned")
	}
	if len(f.Held) > 0 {
		words = append(words, "held")
	}
	if len(words) == 0 {
		return "-"
	}
	return strings.Join(words, ",")
}

func (f *listed) verified() string {
	v := f.Verified
	switch {
	case v == nil:
		return "-"
	case v.Damaged:
		return "unreadable"
	case !v.OK:
		return "damaged"
	}
	return fmt.Sprintf("%s@%s", v.Level, time.Unix(0, v.UnixNS).UTC().Format(time.DateOnly))
}

func (f *listed) reasons() string {
	switch {
	case f.Keep == nil && f.UntilUnixNS != 0:
		return "can be undeleted until " + stamp(f.UntilUnixNS)
	case f.Keep == nil:
		return "-"
	case !*f.Keep:
		return "not kept: " + f.Dropped
	}
	var words []string
	for _, r := range f.Reasons {
		words = append(words, r.Text)
	}
	return strings.Join(words, "; ")
}

// list is every checkpoint, what retention forgot or removed, and attempts that were never published. With a policy each says
// why it is kept. What is damaged is told on stderr.
func (r *reader) list(ctx context.Context, s ckpt.Store, policy *ckpt.Policy) ([]listed, error) {
	job := r.settings.Job
	inv := &ckpt.Inventory{Job: job}
	var err error
	if policy != nil {
		inv, err = ckpt.TakeInventory(ctx, s, job, nil)
	} else if inv.Records, inv.Problems, err = ckpt.List(ctx, s, job); err == nil {
		if inv.Marks, err = ckpt.ReadMarks(ctx, s, job); err == nil {
			inv.Folders, err = ckpt.ListAttempts(ctx, s, job)
		}
	}
	if err != nil {
		return nil, r.ckptError(err)
	}
	r.tell(inv)
	list := []listed{} // never null in JSON
	published := map[ckpt.Attempt]bool{}
	for _, rec := range inv.Records {
		published[rec.Attempt()] = true
		list = append(list, line(inv, rec))
	}
	for _, at := range inv.Folders {
		if !published[at] {
			list = append(list, listed{found: found{Step: at.Step, Generation: at.Generation, Folder: at.Folder(), State: "unpublished"}})
		}
	}
	if policy != nil {
		explain(list, policy.Decide(inv, time.Now()))
	}
	return list, nil
}

// tell says on stderr which objects cannot be read.
func (r *reader) tell(inv *ckpt.Inventory) {
	for _, p := range inv.Problems {
		say(r.stderr, "phalanx: checkpoint %d: %v\n", p.Number, p.Err)
	}
	for _, p := range inv.Marks.Problems {
		say(r.stderr, "phalanx: %v; it counts until it is replaced or taken away\n", p)
	}
}

// line describes a record.
func line(inv *ckpt.Inventory, rec ckpt.Record) listed {
	var f listed
	switch b := rec.Stub; {
	case b == nil:
		f.found = describe(rec.Commit)
	case b.Inside() != nil:
		f.found = describe(b.Inside())
		f.State, f.ForgottenUnixNS, f.UntilUnixNS, f.Why = "forgotten", b.ForgottenUnixNS, b.UntilUnixNS, b.Why
	default:
		f.found = found{Number: b.Number, Step: b.Step, Generation: b.Generation, Branch: b.Branch, UnixNS: b.UnixNS, State: "removed"}
	}
	m := inv.Marks
	if pin := m.Pins[rec.Number]; pin != nil {
		f.Pinned = &marked{By: pin.By, Why: pin.Why, UnixNS: pin.UnixNS}
	}
	for _, h := range m.Holds[rec.Number] {
		if h.UntilUnixNS > time.Now().UnixNano() {
			f.Held = append(f.Held, marked{Owner: h.Owner, Why: h.Why, UnixNS: h.UnixNS, UntilUnixNS: h.UntilUnixNS})
		}
	}
	if v := m.Verified[rec.Number]; v != nil {
		f.Verified = &verification{Level: v.Level, OK: v.OK, UnixNS: v.UnixNS, By: v.By, Version: v.Version}
	}
	for _, p := range m.Problems {
		switch {
		case p.Number != rec.Number:
		case p.Kind == ckpt.PinMark:
			f.Pinned = &marked{Damaged: true}
		case p.Kind == ckpt.HoldMark:
			f.Held = append(f.Held, marked{Damaged: true})
		case p.Kind == ckpt.VerifiedMark:
			f.Verified = &verification{Damaged: true}
		}
	}
	return f
}

// explain adds the decisions of a policy to the lines.
func explain(list []listed, decisions []ckpt.Decision) {
	by := map[uint64]*ckpt.Decision{}
	for i := range decisions {
		by[decisions[i].Number] = &decisions[i]
	}
	for i := range list {
		if d := by[list[i].Number]; d != nil && list[i].State == "published" {
			list[i].Keep, list[i].Reasons, list[i].Dropped = &d.Keep, d.Reasons, d.Why
		}
	}
}
