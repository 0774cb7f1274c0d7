// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"phalanx/scripts/internal/job"
)

// disturbance is one way to disturb the job. do returns when it is done, not when the job has recovered.
type disturbance struct {
	name   string
	weight int
	// trainers is how many copies of the state it may cost: never all of them between two times of peace.
	trainers int
	do       func(ctx context.Context, s *soak, at *job.Status, r *rand.Rand) error
}

var disturbances = []disturbance{
	{"SIGKILL of a trainer", 6, 1, func(_ context.Context, _ *soak, at *job.Status, r *rand.Rand) error {
		return signalTo(syscall.SIGKILL, at.Find(pick(r, at.World)).TrainerPID)
	}},
	{"SIGKILL of two trainers", 2, 2, func(_ context.Context, _ *soak, at *job.Status, r *rand.Rand) error {
		i := r.IntN(len(at.World))
		return errors.Join(signalTo(syscall.SIGKILL, at.Find(at.World[i]).TrainerPID),
			signalTo(syscall.SIGKILL, at.Find(at.World[(i+1)%len(at.World)]).TrainerPID))
	}},
	{"SIGKILL of a daemon", 6, 0, func(_ context.Context, _ *soak, at *job.Status, r *rand.Rand) error {
		return signalTo(syscall.SIGKILL, at.Find(pick(r, at.World)).DaemonPID)
	}},
	{"SIGKILL of the leader's daemon", 4, 0, func(_ context.Context, _ *soak, at *job.Status, _ *rand.Rand) error {
		return signalTo(syscall.SIGKILL, at.Find(at.Leader).DaemonPID)
	}},
	{"SIGKILL of a daemon and its trainer", 3, 1, func(_ context.Context, _ *soak, at *job.Status, r *rand.Rand) error {
		m := at.Find(pick(r, at.World))
		return errors.Join(signalTo(syscall.SIGKILL, m.DaemonPID), signalTo(syscall.SIGKILL, m.TrainerPID))
	}},
	{"SIGKILL of run, and the same command again", 2, 0, func(ctx context.Context, s *soak, _ *job.Status, r *rand.Rand) error {
		return s.again(ctx, time.Duration(r.IntN(1500))*time.Millisecond)
	}},
	{"SIGSTOP of a trainer", 4, 1, func(ctx context.Context, _ *soak, at *job.Status, r *rand.Rand) error {
		return stall(ctx, r, at.Find(pick(r, at.World)).TrainerPID)
	}},
	{"SIGSTOP of a daemon", 4, 1, func(ctx context.Context, _ *soak, at *job.Status, r *rand.Rand) error {
		return stall(ctx, r, at.Find(pick(r, at.World)).DaemonPID)
	}},
	{"drain, then TERM to run and the same command again", 1, 1, drain},
	{"resize to three and back", 2, 1, resize},
}

func pick(r *rand.Rand, from []string) string { return from[r.IntN(len(from))] }

// signalTo sends a signal to a process that may have ended meanwhile.
func signalTo(sig syscall.Signal, pid int) error {
	if pid <= 1 {
		return nil
	}
	if err := syscall.Kill(pid, sig); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("signal %d to %d: %w", sig, pid, err)
	}
	return nil
}

// stall stops a process for a while, which may be short enough to go unseen, or long enough to cost it its place.
func stall(ctx context.Context, r *rand.Rand, pid int) error {
	if err := signalTo(syscall.SIGSTOP, pid); err != nil {
		return err
	}
	err := job.Pause(ctx, 200*time.Millisecond+time.Duration(r.IntN(2800))*time.Millisecond)
	return errors.Join(err, signalTo(syscall.SIGCONT, pid))
}

// again kills run and gives the same command again after a while.
func (s *soak) again(ctx context.Context, after time.Duration) error {
	if err := signalTo(syscall.SIGKILL, s.job.PID()); err != nil {
		return err
	}
	select {
	case <-s.job.Ended:
	case <-ctx.Done():
		return ctx.Err()
	}
	if err := job.Pause(ctx, after); err != nil {
		return err
	}
	return s.start()
}

// drain lets a member leave. It stays away while the job lives, so the job is stopped in order then and started again, which
// goes on from the step that the stop has saved.
func drain(ctx context.Context, s *soak, at *job.Status, r *rand.Rand) error {
	id := pick(r, at.World)
	pid := at.Find(id).DaemonPID
	if err := s.ask(ctx, "drain", id); err != nil {
		return err
	}
	_, err := s.until(ctx, id+" has left", func(now *job.Status) bool {
		m := now.Find(id)
		return now.Whole(ranks) && (m == nil || m.Rank < 0) && errors.Is(syscall.Kill(pid, 0), syscall.ESRCH)
	})
	if err != nil {
		return err
	}
	before, err := s.until(ctx, "it trains without "+id, func(now *job.Status) bool { return now.Whole(ranks) })
	if err != nil {
		return err
	}
	if err := signalTo(syscall.SIGTERM, s.job.PID()); err != nil {
		return err
	}
	select {
	case <-s.job.Ended:
	case <-time.After(2 * time.Minute):
		return fmt.Errorf("TERM does not end the run\n%s", s.job.Tail())
	case <-ctx.Done():
		return ctx.Err()
	}
	if err := s.start(); err != nil {
		return err
	}
	_, err = s.until(ctx, "the job goes on after a stop", func(now *job.Status) bool {
		return now.Whole(ranks) && now.Generation > before.Generation
	})
	if err != nil {
		return err
	}
	return s.history.stopped(before)
}

// resize takes a rank away and gives it back.
func resize(ctx context.Context, s *soak, _ *job.Status, r *rand.Rand) error {
	if err := s.ask(ctx, "resize", fmt.Sprint(ranks-1)); err != nil {
		return err
	}
	_, err := s.until(ctx, "the world is smaller", func(now *job.Status) bool { return now.Whole(ranks - 1) })
	err = errors.Join(err, job.Pause(ctx, time.Duration(r.IntN(2000))*time.Millisecond))
	return errors.Join(err, s.ask(ctx, "resize", fmt.Sprint(ranks)))
}

// ask brings a wish to the job, again while the job has nobody to take it.
func (s *soak) ask(ctx context.Context, verb, what string) error {
	for deadline := time.Now().Add(time.Minute); ; {
		out, err := exec.CommandContext(ctx, filepath.Join(s.bin, "phalanx"), verb, what, "--dir", s.started.Dir, "--why", "soak").CombinedOutput()
		if err == nil {
			return nil
		}
		if time.Now().After(deadline) || ctx.Err() != nil {
			return fmt.Errorf("phalanx %s %s: %w: %s", verb, what, err, strings.TrimSpace(string(out)))
		}
		if err := job.Pause(ctx, 500*time.Millisecond); err != nil {
			return err
		}
	}
}

// until waits for up to two minutes: many processes share few cores here.
func (s *soak) until(ctx context.Context, what string, ok func(*job.Status) bool) (now *job.Status, err error) {
	for range 4 {
		now, err = s.job.Until(ctx, what, func(now *job.Status) bool {
			s.history.note(now)
			return ok(now)
		})
		if err == nil || errors.Is(err, job.ErrEnded) || ctx.Err() != nil {
			break
		}
	}
	return now, err
}

// settled reports whether everybody is back: all ranks train and the spare is ready.
func settled(now *job.Status) bool {
	living := 0
	for _, m := range now.Members {
		if m.DaemonPID > 1 && m.TrainerPID > 1 {
			living++
		}
	}
	return now.Whole(ranks) && living == members && len(now.Spares()) == spares
}

// disturb disturbs the job until the steps are reached from which on it is left in peace, and waits until all are back. The
// seed decides what is done, the job's own pace decides when.
func (s *soak) disturb(ctx context.Context) error {
	r := rand.New(rand.NewPCG(s.seed, 0))
	var bag []int
	for i, d := range disturbances {
		if !strings.Contains(d.name, s.only) {
			continue
		}
		bag = append(bag, slices.Repeat([]int{i}, d.weight)...)
	}
	last := "the start"
	for {
		now, err := s.until(ctx, "all ranks train after "+last, settled)
		if err != nil {
			return err
		}
		s.struck = 0
		if now.Step >= s.calmFrom() {
			return nil
		}
		if err := job.Pause(ctx, time.Duration(r.Float64()*1.6*float64(s.gap))); err != nil {
			return err
		}
		if now, err = s.until(ctx, "all ranks train", settled); err != nil {
			return err
		}
		// Mostly one thing, sometimes several at once or before the job has recovered.
		for n := 1 + r.IntN(4)/3*(1+r.IntN(2)); n > 0; n-- {
			d := disturbances[bag[r.IntN(len(bag))]]
			wait := time.Duration(r.IntN(1200)) * time.Millisecond
			if s.struck+d.trainers >= ranks-1 {
				continue // somebody must hold the state
			}
			s.struck += d.trainers
			last = d.name
			s.counts[d.name]++
			if err := d.do(ctx, s, now, r); err != nil {
				return fmt.Errorf("%s: %w", d.name, err)
			}
			if n > 1 {
				if err := job.Pause(ctx, wait); err != nil {
					return err
				}
				if now, err = s.until(ctx, "some rank trains after "+d.name, func(now *job.Status) bool {
					return len(now.World) > 0 && now.Leader != "" && known(now)
				}); err != nil {
					return err
				}
			}
		}
	}
}

// known reports whether the answer names all that a disturbance may ask for.
func known(now *job.Status) bool {
	return now.Find(now.Leader) != nil && !slices.ContainsFunc(now.World, func(id string) bool { return now.Find(id) == nil })
}

// history is what the job said of its changes, by generation.
type history struct {
	seen  []job.Transition
	stops []uint64 // generations that a job began with which was stopped in order: nobody lived who held the state
}

// stopped notes the generation in which a job goes on that was stopped in order after before was seen, and reports steps that
// the stop has cost.
func (h *history) stopped(before *job.Status) error {
	for _, t := range h.seen {
		if t.Generation.Number > before.Generation && len(t.Members) > 0 {
			if t.ResumeStep < before.Step {
				return fmt.Errorf("stopped in order at step %d or later, generation %d resumes at step %d", before.Step, t.Generation.Number, t.ResumeStep)
			}
			h.stops = append(h.stops, t.Generation.Number)
			return nil
		}
	}
	return fmt.Errorf("no generation after %d is named", before.Generation)
}

func (h *history) note(s *job.Status) {
	for _, t := range s.Transitions {
		i := slices.IndexFunc(h.seen, func(o job.Transition) bool { return o.Generation == t.Generation })
		if i >= 0 {
			h.seen[i] = t // its last parts may have come since
		} else {
			h.seen = append(h.seen, t)
		}
	}
}

// again is how many steps were computed more than once.
func (h *history) again() (steps uint64) {
	for _, t := range h.seen {
		steps += t.NewestStep - min(t.NewestStep, t.ResumeStep)
	}
	return steps
}

// check reports what a run would show that passed by starting everything again.
func (h *history) check() error {
	var errs []error
	for _, t := range h.seen {
		if t.Rewind && !slices.Contains(h.stops, t.Generation.Number) {
			errs = append(errs, fmt.Errorf("generation %d is a rewind although holders of the state lived (%s)", t.Generation.Number, t.Cause))
		}
		if t.NewestStep > t.ResumeStep+1 {
			errs = append(errs, fmt.Errorf("generation %d computes %d steps again", t.Generation.Number, t.NewestStep-t.ResumeStep))
		}
	}
	return errors.Join(errs...)
}
