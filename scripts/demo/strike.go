// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"syscall"
	"time"

	"phalanx/scripts/internal/job"
)

// kill is one way to disturb a job. victims are members; daemon says which of their processes is killed.
type kill struct {
	name    string
	daemon  bool
	victims func(s *job.Status) []string
}

var kills = []kill{
	{"SIGKILL of one trainer", false, func(s *job.Status) []string { return s.Followers()[:1] }},
	{"SIGKILL of one daemon", true, func(s *job.Status) []string { return s.Followers()[1:2] }},
	{"SIGKILL of the leader's daemon", true, func(s *job.Status) []string { return []string{s.Leader} }},
	{"SIGKILL of two trainers at once", false, func(s *job.Status) []string { return s.Followers()[1:3] }},
	{"SIGKILL of the leader's trainer", false, func(s *job.Status) []string { return []string{s.Leader} }},
}

// history is what the job said of its changes, by generation, and what was seen beside it.
type history struct {
	seen   []job.Transition
	faults []string
}

func (h *history) note(s *job.Status) (fresh []job.Transition) {
	for _, t := range s.Transitions {
		i := slices.IndexFunc(h.seen, func(o job.Transition) bool { return o.Generation == t.Generation })
		if i >= 0 {
			h.seen[i] = t // its last parts may have come since
			continue
		}
		h.seen = append(h.seen, t)
		fresh = append(fresh, t)
	}
	return fresh
}

// check reports what a run that passed by starting everything again would show.
func (h *history) check() error {
	var errs []error
	for _, f := range h.faults {
		errs = append(errs, errors.New(f))
	}
	seen := slices.SortedFunc(slices.Values(h.seen), func(a, b job.Transition) int { return cmp.Compare(a.Generation.Number, b.Generation.Number) })
	for i, t := range seen {
		if i > 0 && t.Generation.Number == seen[i-1].Generation.Number+1 {
			for _, id := range survivorsHeal(seen[i-1], t) {
				errs = append(errs, fmt.Errorf("generation %d: %s survived and reads the state anew", t.Generation.Number, id))
			}
			if t.ResumeStep < seen[i-1].ResumeStep {
				errs = append(errs, fmt.Errorf("generation %d resumes at step %d, below that of the one before", t.Generation.Number, t.ResumeStep))
			}
		}
		if t.Rewind {
			errs = append(errs, fmt.Errorf("generation %d is a rewind although holders of the state lived", t.Generation.Number))
		}
		if t.NewestStep > t.ResumeStep+1 {
			errs = append(errs, fmt.Errorf("generation %d computes %d steps again", t.Generation.Number, t.NewestStep-t.ResumeStep))
		}
	}
	return errors.Join(errs...)
}

// survivorsHeal names who was in the world before a change, was not lost in it, and reads the state anew all the same. Whoever
// had not finished a heal goes on with it.
func survivorsHeal(before, now job.Transition) (out []string) {
	for _, id := range now.Healing {
		lost := slices.ContainsFunc(now.Lost, func(l job.Incarnate) bool { return l.Member == id })
		if slices.Contains(before.Members, id) && !lost && (before.Seconds != nil || !slices.Contains(before.Healing, id)) {
			out = append(out, id)
		}
	}
	return out
}

// strike kills and waits until all ranks train again.
func (j run) strike(ctx context.Context, k kill, h *history) error {
	before, err := j.Until(ctx, "all ranks train", whole)
	if err != nil {
		return err
	}
	h.note(before)
	// Not in the same step as the last recovery: a step or two of calm shows that training went on.
	calm := before.Step + 3
	before, err = j.Until(ctx, "training goes on", func(s *job.Status) bool { return whole(s) && s.Step >= calm })
	if err != nil {
		return err
	}
	h.note(before)
	victims := k.victims(before)
	at := time.Now()
	for _, id := range victims {
		pid := before.Find(id).TrainerPID
		if k.daemon {
			pid = before.Find(id).DaemonPID
		}
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			return fmt.Errorf("kill %s, pid %d: %w", id, pid, err)
		}
	}
	after, err := j.Until(ctx, "all ranks train again", func(s *job.Status) bool {
		return whole(s) && s.Step > before.Step+1 && replaced(before, s, victims, k.daemon)
	})
	if err != nil {
		return err
	}
	took := time.Since(at)
	fmt.Printf("   %s: %v at step %d; all %d ranks again after %.2f s\n", k.name, victims, before.Step, ranks, took.Seconds())
	j.report(h, after)
	for _, m := range before.Members {
		now := after.Find(m.Member)
		if slices.Contains(victims, m.Member) && !k.daemon || now == nil {
			continue
		}
		if now.TrainerPID != m.TrainerPID {
			h.faults = append(h.faults, fmt.Sprintf("%s: the trainer of %s was not hit and did not survive (pid %d, then %d)", k.name, m.Member, m.TrainerPID, now.TrainerPID))
		}
	}
	return nil
}

// replaced reports whether every killed process has a successor.
func replaced(before, s *job.Status, victims []string, daemon bool) bool {
	for _, id := range victims {
		old, now := before.Find(id), s.Find(id)
		if now == nil || daemon && now.DaemonPID == old.DaemonPID || !daemon && now.TrainerPID == old.TrainerPID {
			return false
		}
	}
	return true
}

// report prints the changes of the world since the last look.
func (j run) report(h *history, s *job.Status) {
	fresh := h.note(s)
	if len(fresh) == 0 {
		fmt.Println("      no new generation: the successor took over beside the living trainer")
	}
	for _, t := range fresh {
		kind := "failure"
		if t.Planned {
			kind = "planned"
		}
		fmt.Printf("      generation %d (%s): %d ranks, resumes at step %d, %d computed again", t.Generation.Number, kind, len(t.Members), t.ResumeStep, t.NewestStep-min(t.NewestStep, t.ResumeStep))
		if v := t.Seconds; v != nil {
			fmt.Printf("; seconds: detect %.3f agree %.3f seal %.3f form %.3f heal %.3f first step %.3f",
				v.Detect, v.Agree, v.Seal, v.Form, v.Heal, v.FirstStep)
		}
		fmt.Println()
	}
}
