// SPDX-License-Identifier: Apache-2.0

package chaos_test

import (
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"

	"phalanx/node"
)

// seed is that of the environment, to do a failed test again, or a new one.
func seed(t *testing.T) uint64 {
	t.Helper()
	n := uint64(time.Now().UnixNano())
	if text := os.Getenv("PHALANX_CHAOS_SEED"); text != "" {
		var err error
		if n, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatalf("PHALANX_CHAOS_SEED: %v", err)
		}
	}
	t.Logf("PHALANX_CHAOS_SEED=%d", n)
	return n
}

// TestP3SameTrainingThroughRandomKills kills at random, also while the job still recovers from the kill before, and wants the
// bits of an undisturbed run, without anybody who was not hit having started again or read the state anew.
func TestP3SameTrainingThroughRandomKills(t *testing.T) {
	const kills, steps = 36, 1000
	random := rand.New(rand.NewPCG(seed(t), 3))
	j := newJob(t, 4, steps, 20*time.Millisecond)
	j.run()
	j.until("four ranks train", both(whole(4), at(5)))
	done := 0
	for done < kills {
		s := j.until("somebody can be hit", func(s *node.Status) bool { return len(j.holders(s)) > 1 })
		if s.Step > steps-60 {
			break
		}
		n := j.randomStrike(random, s)
		done += n
		calm := time.Duration(20+random.IntN(600)) * time.Millisecond
		for end := time.Now().Add(calm); time.Now().Before(end); time.Sleep(pollTime) {
			_, _ = j.look() // for the history
		}
	}
	if done < 24 {
		t.Errorf("%d processes were killed before the job was nearly done, want at least 24", done)
	}
	j.finish()
}

// holders are the members of the world that hold the state and were not hit.
func (j *job) holders(s *node.Status) []node.MemberStatus {
	var out []node.MemberStatus
	for _, m := range s.Members {
		if m.Rank >= 0 && m.Local == "running" && m.TrainerPID > 1 && m.DaemonPID > 1 && j.struck[m.TrainerPID] == "" {
			out = append(out, m)
		}
	}
	return out
}

// randomStrike kills one or two processes and says how many. One holder of the state is always left whole: without any the
// job has to go back, and may.
func (j *job) randomStrike(random *rand.Rand, s *node.Status) int {
	holders := j.holders(s)
	random.Shuffle(len(holders), func(a, b int) { holders[a], holders[b] = holders[b], holders[a] })
	victim, second := holders[0], holders[1]
	two := len(holders) > 2
	leader := s.Leader
	switch pick := random.IntN(10); {
	case pick < 4:
		j.strike(s, []node.MemberStatus{victim}, nil)
	case pick < 6:
		j.strike(s, nil, []node.MemberStatus{victim})
	case pick < 7:
		j.strike(s, nil, []node.MemberStatus{find(j.t, s, leader)})
	case pick < 8 && two:
		j.strike(s, []node.MemberStatus{victim, second}, nil)
		return 2
	case pick < 9 && two: // three of the four daemons vote, so two of them at least once in a while
		j.strike(s, nil, []node.MemberStatus{victim, second})
		return 2
	case two:
		j.strike(s, []node.MemberStatus{victim}, []node.MemberStatus{second})
		return 2
	default:
		j.strike(s, []node.MemberStatus{victim}, nil)
	}
	return 1
}
