// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// watched is one kill, timed by the trainers. Durations are in seconds.
type watched struct {
	What       string  `json:"what"` // daemon, leader or trainer
	Member     string  `json:"member"`
	KillUnixNS int64   `json:"kill_unix_ns"`
	Step       int64   `json:"step"` // whose decision ended the wait
	From       int64   `json:"from_generation"`
	To         int64   `json:"to_generation"`
	First      float64 `json:"first"` // until the first trainer, of those that had to wait, knew that a step is committed
	Last       float64 `json:"last"`  // until all of them did
}

// measureWatched kills daemons beside their living trainers, the leader's too, and some trainers to check the job's own
// account of them.
func measureWatched(ctx context.Context, p plan, dir string, r *results) (err error) {
	w := filepath.Join(dir, "watched")
	j, err := start(p, w, p.self, trainerVerb, "-reduced", "100000000", "-floor", p.floor.String(), "-out", w)
	if err != nil {
		return err
	}
	defer j.end()
	random := rand.New(rand.NewPCG(p.seed, 2))
	var order []string
	for what, n := range map[string]int{"daemon": p.daemonKills, "leader": p.leaderKills, "trainer": p.watchedKills} {
		for range n {
			order = append(order, what)
		}
	}
	slices.Sort(order) // a map has none
	random.Shuffle(len(order), func(a, b int) { order[a], order[b] = order[b], order[a] })
	for i, what := range order {
		s, err := j.watch(ctx, what, random)
		if err != nil {
			return fmt.Errorf("kill %d, of a %s: %w", i+1, what, err)
		}
		r.Watched = append(r.Watched, *s)
		if s.Last > tooLong {
			fmt.Printf("   %s of %s at %d: first %.3f s, last %.3f s, generation %d to %d\n", what, s.Member, s.KillUnixNS, s.First, s.Last, s.From, s.To)
		}
	}
	return nil
}

// watch kills once and reads what the trainers wrote down around it.
func (j *job) watch(ctx context.Context, what string, random *rand.Rand) (*watched, error) {
	before, err := j.calm(ctx)
	if err != nil {
		return nil, err
	}
	followers := slices.DeleteFunc(slices.Clone(before.World), func(id string) bool { return id == before.Leader })
	victim := followers[random.IntN(len(followers))]
	switch what {
	case "leader":
		victim = before.Leader
	case "trainer":
		victim = before.World[random.IntN(len(before.World))]
	}
	pid := before.find(victim).DaemonPID
	if what == "trainer" {
		pid = before.find(victim).TrainerPID
	}
	if err := pause(ctx, time.Duration(random.Int64N(int64(4*j.floor)))); err != nil {
		return nil, err
	}
	at, err := kill(pid)
	if err != nil {
		return nil, err
	}
	// Longer than for trainers: five daemons that die within a second of their start end the run.
	if err := pause(ctx, j.settle+500*time.Millisecond); err != nil {
		return nil, err
	}
	_, err = j.until(ctx, "all ranks train again", func(s *status) bool {
		m := s.find(victim)
		return s.whole() && m != nil && m.TrainerPID != pid && m.DaemonPID != pid && s.Step > before.Step+1
	})
	if err != nil {
		return nil, err
	}
	// What the job says may be of before the kill still; what the trainers write is not.
	for end := time.Now().Add(20 * time.Second); ; {
		lives, err := j.lives(before, what, victim)
		if err != nil {
			return nil, err
		}
		w, err := timeOf(what, victim, at, lives)
		if err == nil {
			return w, nil
		}
		if time.Now().After(end) {
			return nil, fmt.Errorf("%w\n%s", err, j.tail())
		}
		if err := pause(ctx, 20*time.Millisecond); err != nil {
			return nil, err
		}
	}
}

// lives reads what the trainers of a world wrote. What a killed one wrote ends with it and is left out.
func (j *job) lives(s *status, what, victim string) (map[string][]moment, error) {
	out := map[string][]moment{}
	for _, id := range s.World {
		if what == "trainer" && id == victim {
			continue
		}
		index := id[strings.LastIndexByte(id, '/')+1:]
		moments, err := readMoments(filepath.Join(j.dir, fmt.Sprintf("%s.%d.moments", index, s.find(id).TrainerPID)))
		if err != nil {
			return nil, err
		}
		out[id] = moments
	}
	return out, nil
}

// timeOf finds the first step that could not be decided before the kill was dealt with. Behind the kill of a daemon that is
// the first one that its own trainer voted for afterwards: decided by its successor. Behind the kill of a trainer it is the
// first one of a later generation.
func timeOf(what, victim string, at int64, lives map[string][]moment) (*watched, error) {
	w := &watched{What: what, Member: victim, KillUnixNS: at}
	for _, moments := range lives {
		for _, m := range moments {
			if m.Decided < at {
				w.From = max(w.From, m.Generation)
			}
		}
	}
	of, i := victim, -1
	if what != "trainer" {
		i = slices.IndexFunc(lives[of], func(m moment) bool { return m.Reduced > at })
	}
	for id := range lives {
		if i >= 0 {
			break
		}
		// Of the survivors any will do: they all commit the same step. The victim of a daemon's kill is no survivor when its
		// trainer was given up, which the generation shows.
		of, i = id, slices.IndexFunc(lives[id], func(m moment) bool { return m.Generation > w.From })
	}
	if i < 0 {
		return nil, fmt.Errorf("no step was committed after the kill of %s at %d", victim, at)
	}
	w.Step, w.To = lives[of][i].Step, lives[of][i].Generation
	var first, last int64
	for id, moments := range lives {
		i := slices.IndexFunc(moments, func(m moment) bool { return m.Step == w.Step })
		if i < 0 {
			continue // it rolled forward, inside Begin
		}
		last = max(last, moments[i].Decided)
		waited := what == "trainer" || id == victim || of != victim
		if waited && (first == 0 || moments[i].Decided < first) {
			first = moments[i].Decided
		}
	}
	w.First, w.Last = float64(first-at)/1e9, float64(last-at)/1e9
	return w, nil
}
