// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"phalanx/scripts/internal/job"
)

// tooLong is the recovery that nobody may see.
const tooLong = 1.0

// recovery is one kill of a trainer and what came of it. All durations are in seconds.
type recovery struct {
	Member     string `json:"member"`
	Leads      bool   `json:"leads"` // its daemon led
	KillUnixNS int64  `json:"kill_unix_ns"`
	Step       uint64 `json:"step"`       // committed when the kill was planned
	Generation uint64 `json:"generation"` // of the change
	Cause      string `json:"cause"`

	Detect    float64 `json:"detect"` // kill until the end was seen
	Tell      float64 `json:"tell"`   // until the leader asked for seals
	Seal      float64 `json:"seal"`
	Agree     float64 `json:"agree"`
	Form      float64 `json:"form"`
	Heal      float64 `json:"heal"`
	FirstStep float64 `json:"first_step"`
	Total     float64 `json:"total"`    // kill until the next world committed: the sum of the above
	Stamped   float64 `json:"by_stamp"` // the same by the time stamp of the change, which knows nothing of the parts before it

	// Overtaken says that the next change came before the job had recorded the parts of this one: then all of them but detect
	// are 0, and Total is until the first committed step that is recorded.
	Overtaken bool `json:"overtaken,omitempty"`

	FullSize   float64 `json:"full_size"` // kill until the full world committed
	Recomputed uint64  `json:"recomputed_steps"`
	Rewind     bool    `json:"rewind,omitempty"`
}

// smaller is the time of one step of the world that is left after a kill, in milliseconds, while nothing else happens.
type smaller struct {
	Ranks     int     `json:"ranks"`
	Reference float64 `json:"reference_ms"` // of the reference trainer, a mean
	Empty     summary `json:"empty_ms"`     // of the trainers that compute nothing
}

// measureSmaller runs worlds of one rank less. A recovery ends with such a step, which is no part of recovering.
func measureSmaller(ctx context.Context, p plan, dir string, r *results) error {
	j, err := reference(p, filepath.Join(dir, "smaller"), ranks-1)
	if err != nil {
		return err
	}
	defer j.end()
	pace, err := j.pace(ctx, max(p.observe/3, 2*time.Second))
	if err != nil {
		return err
	}
	j.end()
	steps := max(50, p.steps/8)
	lives, err := runTrainers(ctx, p, filepath.Join(dir, "smaller-empty"), ranks-1, "-slots", strconv.Itoa(ranks),
		"-floor", p.floor.String(), "-reduced", strconv.Itoa(steps))
	if err != nil {
		return err
	}
	var took []float64
	for _, moments := range lives {
		for i := warmSteps + 1; i < len(moments); i++ {
			took = append(took, float64(moments[i].Decided-moments[i-1].Decided)/1e6)
		}
	}
	r.Smaller = &smaller{ranks - 1, 1e3 * pace, summarise(took)}
	return nil
}

// measureRecovery kills trainers of the reference trainer's job, one after the other, each time in a full world.
func measureRecovery(ctx context.Context, p plan, dir string, r *results) error {
	j, err := reference(p, filepath.Join(dir, "recovery"), ranks)
	if err != nil {
		return err
	}
	defer j.end()
	random := rand.New(rand.NewPCG(p.seed, 1))
	for i := range p.kills {
		s, err := j.strike(ctx, random)
		if err != nil {
			return fmt.Errorf("kill %d: %w", i+1, err)
		}
		r.Recovery = append(r.Recovery, *s)
		s.tell(i)
	}
	last, err := j.calm(ctx)
	if err != nil {
		return err
	}
	want := uint64(1 + 2*p.kills) // the start, and for each kill one change on the path and one back
	if n := last.Generation; n != want {
		r.Surprises = append(r.Surprises, fmt.Sprintf("%d kills led to generation %d, expected %d", p.kills, n, want))
	}
	return nil
}

// tell prints what took too long.
func (s *recovery) tell(i int) {
	if s.Total > tooLong {
		told, _ := json.MarshalIndent(s, "   ", "  ")
		fmt.Printf("   kill %d took %.3f s:\n   %s\n", i+1, s.Total, told)
	}
}

// strike kills one trainer at a random moment of a step and reads what the job says about it.
func (j *run) strike(ctx context.Context, random *rand.Rand) (*recovery, error) {
	before, err := j.calm(ctx)
	if err != nil {
		return nil, err
	}
	victim := before.World[random.IntN(len(before.World))]
	pid := before.Find(victim).TrainerPID
	at, err := j.strikeAt(ctx, random, pid)
	if err != nil {
		return nil, err
	}
	after, err := j.Until(ctx, "all ranks train again", func(s *job.Status) bool {
		m := s.Find(victim)
		return j.whole(s) && m != nil && m.TrainerPID != pid && changeAfter(s, victim, at) >= 0
	})
	if err != nil {
		return nil, err
	}
	return account(before, after, victim, at)
}

// strikeAt kills processes at a random moment of a step and leaves the job alone for a while.
func (j *run) strikeAt(ctx context.Context, random *rand.Rand, pids ...int) (int64, error) {
	if err := job.Pause(ctx, time.Duration(random.Int64N(int64(4*j.floor)))); err != nil {
		return 0, err
	}
	at, err := job.Kill(pids...)
	if err != nil {
		return 0, err
	}
	return at, job.Pause(ctx, j.settle)
}

// changeAfter is the index of the change that lost the victim after the kill, -1 when there is none.
func changeAfter(s *job.Status, victim string, at int64) int {
	return slices.IndexFunc(s.Transitions, func(t job.Transition) bool {
		return t.UnixNS > at && slices.ContainsFunc(t.Lost, func(i job.Incarnate) bool { return i.Member == victim })
	})
}

// account splits the time from a kill to the first step of the next world.
func account(before, after *job.Status, victim string, at int64) (*recovery, error) {
	i := changeAfter(after, victim, at)
	t, full := after.Transitions[i], after.Transitions[len(after.Transitions)-1]
	r := &recovery{
		Member: victim, Leads: victim == before.Leader, KillUnixNS: at, Step: before.Step, Generation: t.Generation.Number,
		Cause: t.Cause, Recomputed: t.NewestStep - min(t.NewestStep, t.ResumeStep), Rewind: t.Rewind,
	}
	seen := int64(0)
	for _, e := range t.Evidence {
		if e.About.Member == victim && e.UnixNS >= at && (seen == 0 || e.UnixNS < seen) {
			seen = e.UnixNS
		}
	}
	if seen == 0 {
		told, _ := json.Marshal(t)
		return nil, fmt.Errorf("the change that lost %s has no evidence from after the kill: %s", victim, told)
	}
	r.Detect = float64(seen-at) / 1e9
	for t.Seconds == nil {
		r.Overtaken = true
		if i++; i == len(after.Transitions) {
			return nil, fmt.Errorf("no times are recorded of the change that lost %s, nor of a later one", victim)
		}
		t = after.Transitions[i]
	}
	r.Stamped = float64(t.Committed()-at) / 1e9
	r.Total = r.Stamped
	if v := t.Seconds; !r.Overtaken {
		r.Tell, r.Seal, r.Agree, r.Form, r.Heal, r.FirstStep = v.Detect, v.Seal, v.Agree, v.Form, v.Heal, v.FirstStep
		r.Total = r.Detect + r.Tell + r.Seal + r.Agree + r.Form + r.Heal + r.FirstStep
	}
	if len(full.Members) == ranks {
		r.FullSize = float64(full.Committed()-at) / 1e9
	}
	return r, nil
}
