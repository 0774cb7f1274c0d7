// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"syscall"
	"time"

	"phalanx/scripts/internal/job"
)

// undisturbed trains without a failure, and sees that a hundred steps write nothing to the log of the job.
func undisturbed(ctx context.Context, p plan, dir string) (string, error) {
	// The last flag counts: a checkpoint that is published is an entry of the log.
	j, err := start(ctx, p, dir, 5*time.Millisecond, "--save-every", "10m")
	if err != nil {
		return "", err
	}
	defer j.kill()
	const window = 100
	for {
		from, err := j.Until(ctx, "all ranks train", whole)
		if err != nil {
			return "", err
		}
		to, err := j.Until(ctx, "a hundred steps later", func(s *job.Status) bool { return s.Step >= from.Step+window })
		if err != nil {
			return "", err
		}
		if from.Raft.LastIndex == to.Raft.LastIndex {
			fmt.Printf("   %d steps, and the log stays at entry %d\n", to.Step-from.Step, to.Raft.LastIndex)
			break
		}
		// At its start the job still chooses its voters, and an election on a busy machine is an entry too.
		if to.Step+window >= uint64(p.steps) {
			return "", fmt.Errorf("the log grew in every window of %d steps, at last from entry %d to %d", window, from.Raft.LastIndex, to.Raft.LastIndex)
		}
	}
	return j.finish(ctx)
}

// spared kills one trainer of a job that has a spare: one new generation, and the parked process computes.
func spared(ctx context.Context, p plan, dir string) (string, error) {
	j, err := start(ctx, p, dir, p.floor/2, "--spares", "1")
	if err != nil {
		return "", err
	}
	defer j.kill()
	h := &history{}
	before, err := j.Until(ctx, "all ranks train and one is parked", func(s *job.Status) bool {
		return whole(s) && s.Step >= 10 && len(s.Spares()) == 1
	})
	if err != nil {
		return "", err
	}
	h.note(before)
	spare, dead := before.Spares()[0], *before.Find(before.Followers()[0])
	at := time.Now()
	if err := syscall.Kill(dead.TrainerPID, syscall.SIGKILL); err != nil {
		return "", fmt.Errorf("kill the trainer of %s, pid %d: %w", dead.Member, dead.TrainerPID, err)
	}
	after, err := j.Until(ctx, "the spare trains", func(s *job.Status) bool {
		return whole(s) && s.Generation > before.Generation && s.Step > before.Step+3
	})
	if err != nil {
		return "", err
	}
	fmt.Printf("   SIGKILL of the trainer of %s at step %d; all %d ranks again after %.2f s\n", dead.Member, before.Step, ranks, time.Since(at).Seconds())
	j.report(h, after)
	now := after.Find(spare.Member)
	switch {
	case after.Generation != before.Generation+1:
		return "", fmt.Errorf("one kill made generation %d of %d", after.Generation, before.Generation)
	case now == nil || now.Rank != dead.Rank || now.TrainerPID != spare.TrainerPID:
		return "", fmt.Errorf("rank %d of %s was not taken by the parked trainer of %s, pid %d", dead.Rank, dead.Member, spare.Member, spare.TrainerPID)
	}
	for _, m := range before.Members {
		if n := after.Find(m.Member); m.Member != dead.Member && (n == nil || n.TrainerPID != m.TrainerPID) {
			return "", fmt.Errorf("the trainer of %s was not hit and did not survive", m.Member)
		}
	}
	digest, err := j.finish(ctx)
	if err != nil {
		return "", err
	}
	return digest, h.check()
}
