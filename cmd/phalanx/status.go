// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"phalanx"
	"phalanx/elastic"
	"phalanx/node"
)

func newStatus(a *app) *cobra.Command {
	r := &reader{app: a}
	var explain bool
	c := &cobra.Command{
		Use: "status", Args: cobra.NoArgs,
		Short: "Show the job: world, leader, phase, step, members",
		Example: `  phalanx status
  phalanx status --explain
  phalanx status --dir DIR --json`,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := r.load(c); err != nil {
				return err
			}
			s, err := r.status(c.Context(), explain)
			if err != nil {
				return err
			}
			if r.asJSON {
				return a.printJSON(s)
			}
			printStatus(a.stdout, s, time.Now())
			if explain {
				printTransitions(a.stdout, s.Transitions)
			}
			return nil
		},
	}
	r.bind(c)
	c.Flags().BoolVar(&explain, "explain", false, "and the last changes of the world: cause, evidence, how long each part took")
	return c
}

func newMembers(a *app) *cobra.Command {
	r := &reader{app: a}
	c := &cobra.Command{
		Use: "members", Args: cobra.NoArgs,
		Short: "List the members of the job",
		RunE: func(c *cobra.Command, _ []string) error {
			if err := r.load(c); err != nil {
				return err
			}
			s, err := r.status(c.Context(), false)
			if err != nil {
				return err
			}
			if r.asJSON {
				return a.printJSON(s.Members)
			}
			printMembers(a.stdout, s.Members)
			return nil
		},
	}
	r.bind(c)
	return c
}

func printStatus(w io.Writer, s *node.Status, now time.Time) {
	g := phalanx.Generation{Epoch: s.Epoch, Number: s.Generation}
	leader := string(s.Leader)
	if leader == "" {
		leader = "none"
	}
	step := fmt.Sprintf("step %d", s.Step)
	if s.LastStep > 0 {
		step += fmt.Sprintf(" of %d", s.LastStep)
	}
	say(w, "job %s  phase %s  generation %s  %s  leader %s\n", s.Job, s.Phase, g, step, leader)
	say(w, "world of %d ranks", len(s.World))
	if s.GroupSize > 1 {
		say(w, " in groups of %d", s.GroupSize)
	}
	if s.Slots > 0 {
		say(w, "  %d slots, efficiency of the deal %.0f %%", s.Slots, 100*s.Efficiency)
	}
	if p := s.Published; p != nil {
		say(w, "  published step %d", p.Step)
		if p.UnixNS > 0 {
			say(w, " (%s ago)", now.Sub(time.Unix(0, p.UnixNS)).Truncate(time.Second))
		}
	}
	fmt.Fprintln(w)
	printSaves(w, s.Saves)
	printWarm(w, s.Warm)
	if s.Halt != "" {
		say(w, "halted: %s\n", s.Halt)
	}
	if !s.Fresh {
		say(w, "answered by %s without the leader: this may be old\n", s.AnsweredBy)
	}
	for _, n := range s.Notes {
		say(w, "note: %s\n", n)
	}
	fmt.Fprintln(w)
	printMembers(w, s.Members)
}

// printSaves tells what is unusual about saves: one under way, or some that failed.
func printSaves(w io.Writer, s *node.SavesStatus) {
	if s == nil {
		return
	}
	var levels []string
	for _, l := range []struct {
		name string
		at   *node.LevelStatus
	}{{"local", s.Levels.Local}, {"memory", s.Levels.Memory}, {"durable", s.Levels.Durable}} {
		if l.at != nil {
			levels = append(levels, fmt.Sprintf("%s %d (%s)", l.name, l.at.Step, time.Duration(l.at.Age*float64(time.Second)).Truncate(time.Second)))
		}
	}
	if len(levels) > 0 {
		say(w, "newest steps by level and age: %s\n", strings.Join(levels, "  "))
	}
	for _, x := range s.Under {
		if x.Waiting {
			continue
		}
		say(w, "saves step %d: %d of %d shares stored in %.1f s", x.Step, x.Stored, x.Shares, x.Seconds)
		if x.TakenOver > 0 {
			say(w, ", %d taken over", x.TakenOver)
		}
		fmt.Fprintln(w)
	}
	if x := s.Skipped; x.Sum() > 0 {
		say(w, "%d saves were skipped, last that of step %d: %d while the slabs were in use, %d while saves failed, %d were asked for too late\n",
			x.Sum(), x.Last, x.Busy, x.Failing, x.Missed)
	}
	if s.Failures > 0 {
		say(w, "%d saves in a row have failed (policy %s); recovery point is step %d, %s old\n", s.Failures, s.Policy, s.RecoveryPoint,
			time.Duration(s.Age*float64(time.Second)).Truncate(time.Second))
	}
}

// printWarm tells how many trainers were started ahead on this host.
func printWarm(w io.Writer, s *node.WarmState) {
	if s == nil {
		return
	}
	var pids []string
	for _, p := range s.Processes {
		if p.Ready {
			pids = append(pids, fmt.Sprint(p.PID))
		}
	}
	say(w, "started ahead on this host: %d of %d ready", len(pids), s.Want)
	if len(pids) > 0 {
		say(w, " (%s)", strings.Join(pids, " "))
	}
	if s.Why != "" {
		say(w, "; %s", s.Why)
	}
	fmt.Fprintln(w)
}

func printMembers(w io.Writer, members []node.MemberStatus) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "MEMBER\tLIFE\tRANK\tSTATE\tROLE\tSLOTS\tSTEP\tDAEMON\tTRAINER\t")
	for _, m := range members {
		rank, slots := "-", "-"
		if m.Rank >= 0 {
			rank = fmt.Sprint(m.Rank)
		}
		if len(m.Slots) == 2 {
			slots = fmt.Sprintf("%d-%d", m.Slots[0], m.Slots[1]-1)
			if m.Slots[1] <= m.Slots[0] {
				slots = "none"
			}
		}
		state := m.State
		if m.Local != "" && m.Local != m.State && m.Local != "running" {
			state += "/" + m.Local
		}
		why := m.Why
		if m.HealSeconds > 0 {
			why = strings.TrimSpace(fmt.Sprintf("%s heals, about %.1f s left", why, m.HealSeconds))
		}
		say(t, "%s\t%d\t%s\t%s\t%s\t%s\t%d\t%s\t%s\t%s\n", m.Member, m.Incarnation, rank, state, m.Role, slots, m.Step, pidText(m.DaemonPID), pidText(m.TrainerPID), why)
	}
	_ = t.Flush() // writing to the terminal failed; there is nobody to tell
}

func pidText(pid int) string {
	if pid <= 0 {
		return "-"
	}
	return fmt.Sprint(pid)
}

// printTransitions tells the changes of the world, the newest last.
func printTransitions(w io.Writer, transitions []elastic.Transition) {
	if len(transitions) == 0 {
		fmt.Fprintln(w, "\nno change of the world yet")
	}
	for _, t := range transitions {
		say(w, "\ngeneration %s", t.Generation)
		if t.UnixNS > 0 {
			say(w, "  %s", time.Unix(0, t.UnixNS).Format("2006-01-02 15:04:05.000"))
		}
		say(w, "  %s\n", t.Cause)
		say(w, "  resumes at step %d", t.ResumeStep)
		if t.Newest > t.ResumeStep {
			say(w, ", %d computed again", t.Newest-t.ResumeStep)
		}
		if t.Rewind {
			say(w, ", a rewind on branch %d", t.Branch)
		}
		say(w, "; %d ranks: %s\n", len(t.Members), joined(t.Members))
		if len(t.Lost) > 0 {
			say(w, "  lost: %s\n", joined(t.Lost))
		}
		if len(t.Healing) > 0 {
			say(w, "  heal: %s\n", joined(t.Healing))
		}
		for _, e := range t.Evidence {
			say(w, "  evidence: %s\n", e)
		}
		if s := t.Seconds; s != nil {
			say(w, "  detect %.3f s, agree %.3f s, seal %.3f s, form %.3f s, heal %.3f s, first step %.3f s\n",
				s.Detect, s.Agree, s.Seal, s.Form, s.Heal, s.FirstStep)
		}
	}
}

func joined[T any](list []T) string {
	words := make([]string, len(list))
	for i, v := range list {
		words[i] = fmt.Sprint(v)
	}
	return strings.Join(words, " ")
}
