// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"path/filepath"

	"phalanx/scripts/internal/job"
)

// measureSpare kills trainers of the reference trainer's job beside a parked spare, which takes the rank: one change of the
// world for each kill, and the successor of the killed trainer is the next spare.
func measureSpare(ctx context.Context, p plan, dir string, r *results) error {
	j, err := reference(p, filepath.Join(dir, "spare"), ranks, "--spares", "1")
	if err != nil {
		return err
	}
	defer j.end()
	random := rand.New(rand.NewPCG(p.seed, 3))
	for i := range p.spareKills {
		s, err := j.replace(ctx, random)
		if err != nil {
			return fmt.Errorf("kill %d: %w", i+1, err)
		}
		r.Spare = append(r.Spare, s.recovery)
		if s.rise != 1 {
			r.Surprises = append(r.Surprises, fmt.Sprintf("kill %d beside a spare took the generation up by %d", i+1, s.rise))
		}
		s.tell(i)
	}
	return nil
}

type replacement struct {
	recovery
	rise uint64 // of the generation, until the next spare was parked
}

// replace kills one trainer and waits until the spare trains in its place and another one is parked.
func (j *run) replace(ctx context.Context, random *rand.Rand) (*replacement, error) {
	parked := func(s *job.Status) bool { return j.whole(s) && len(s.Spares()) == 1 }
	before, err := j.Until(ctx, "a spare is parked", parked)
	if err != nil {
		return nil, err
	}
	enough := before.Step + 5
	before, err = j.Until(ctx, "training goes on", func(s *job.Status) bool { return parked(s) && s.Step >= enough })
	if err != nil {
		return nil, err
	}
	victim := before.World[random.IntN(len(before.World))]
	at, err := j.strikeAt(ctx, random, before.Find(victim).TrainerPID)
	if err != nil {
		return nil, err
	}
	after, err := j.Until(ctx, "the spare trains and the next one is parked", func(s *job.Status) bool {
		return parked(s) && s.Spares()[0].Member == victim && changeAfter(s, victim, at) >= 0
	})
	if err != nil {
		return nil, err
	}
	s, err := account(before, after, victim, at)
	if err != nil {
		return nil, err
	}
	return &replacement{*s, after.Generation - before.Generation}, nil
}
