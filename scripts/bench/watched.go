// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"phalanx/scripts/internal/job"
)

// watched is one kill, timed by the trainers. Durations are in seconds.
type watched struct {
	What       string  `json:"what"` // daemon, leader, trainer, or both: the leader's daemon and its trainer
	Member     string  `json:"member"`
	KillUnixNS int64   `json:"kill_unix_ns"`
	Step       int64   `json:"step"` // whose decision ended the wait
	From       int64   `json:"from_generation"`
	To         int64   `json:"to_generation"`
	First      float64 `json:"first"` // until the first trainer, of those that had to wait, knew that a step is committed
	Last       float64 `json:"last"`  // until all of them did

	// Restart is when the daemon's successor was started, to a hundredth of a second; 0 when no daemon was killed.
	Restart float64 `json:"restart,omitempty"`
	// Change is the job's own account where the world changed.
	Change *recovery `json:"change,omitempty"`
}

// measureWatched kills daemons beside their living trainers, the leader's too, the leader's together with its trainer, and some
// trainers to check the job's own account of them.
func measureWatched(ctx context.Context, p plan, dir string, r *results) error {
	w := filepath.Join(dir, "watched")
	j, err := start(p, w, ranks, nil, p.self, trainerVerb, "-reduced", "100000000", "-floor", p.floor.String(), "-out", w)
	if err != nil {
		return err
	}
	defer j.end()
	random := rand.New(rand.NewPCG(p.seed, 2))
	var order []string
	for what, n := range map[string]int{"daemon": p.daemonKills, "leader": p.leaderKills, "both": p.bothKills, "trainer": p.watchedKills} {
		for range n {
			order = append(order, what)
		}
	}
	slices.Sort(order) // a map has none
	random.Shuffle(len(order), func(a, b int) { order[a], order[b] = order[b], order[a] })
	killed := map[string]time.Time{}
	for i, what := range order {
		s, err := j.watch(ctx, what, random, killed)
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

// daemonLife is how long a daemon lives before it is killed again: five of one member that die within a second of their start
// end the run.
const daemonLife = 1500 * time.Millisecond

// aim chooses a victim. The daemons of killed were killed at the given times.
func (j *run) aim(ctx context.Context, s *job.Status, what string, random *rand.Rand, killed map[string]time.Time) (string, error) {
	victims := s.World
	switch what {
	case "daemon":
		victims = s.Followers()
	case "leader", "both":
		victims = []string{s.Leader}
	}
	if what != "trainer" {
		old := slices.DeleteFunc(slices.Clone(victims), func(id string) bool { return time.Since(killed[id]) < daemonLife })
		if len(old) > 0 {
			victims = old
		}
	}
	victim := victims[random.IntN(len(victims))]
	if what == "trainer" {
		return victim, nil
	}
	defer func() { killed[victim] = time.Now() }()
	return victim, job.Pause(ctx, daemonLife-min(daemonLife, time.Since(killed[victim])))
}

// watch kills once and reads what the trainers wrote down around it.
func (j *run) watch(ctx context.Context, what string, random *rand.Rand, killed map[string]time.Time) (*watched, error) {
	before, err := j.calm(ctx)
	if err != nil {
		return nil, err
	}
	victim, err := j.aim(ctx, before, what, random, killed)
	if err != nil {
		return nil, err
	}
	m := before.Find(victim)
	pids := map[string][]int{"trainer": {m.TrainerPID}, "both": {m.DaemonPID, m.TrainerPID}}[what]
	if pids == nil {
		pids = []int{m.DaemonPID}
	}
	at, err := j.strikeAt(ctx, random, pids...)
	if err != nil {
		return nil, err
	}
	after, err := j.Until(ctx, "all ranks train again", func(s *job.Status) bool {
		m := s.Find(victim)
		return j.whole(s) && m != nil && !slices.Contains(pids, m.TrainerPID) && !slices.Contains(pids, m.DaemonPID) && s.Step > before.Step+1
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
			w.explain(before, after)
			return w, nil
		}
		if time.Now().After(end) {
			return nil, fmt.Errorf("%w\n%s", err, j.Tail())
		}
		if err := job.Pause(ctx, 20*time.Millisecond); err != nil {
			return nil, err
		}
	}
}

// explain adds what the job and the kernel know of a kill.
func (w *watched) explain(before, after *job.Status) {
	if w.What != "trainer" {
		if started := startOf(after.Find(w.Member).DaemonPID); started > w.KillUnixNS-1e7 {
			w.Restart = max(0.001, float64(started-w.KillUnixNS)/1e9)
		}
	}
	if !keepsTrainer(w.What) && changeAfter(after, w.Member, w.KillUnixNS) >= 0 {
		if s, err := account(before, after, w.Member, w.KillUnixNS); err == nil { // without evidence of its own there is no account
			w.Change = s
		}
	}
}

// startOf is when a process was started, 0 when that is not known.
func startOf(pid int) (unixNS int64) {
	_, stat, _ := strings.Cut(read(fmt.Sprintf("/proc/%d/stat", pid)), ") ")
	fields, up := strings.Fields(stat), strings.Fields(read("/proc/uptime"))
	if len(fields) < 20 || len(up) < 1 {
		return 0
	}
	ticks, err := strconv.ParseInt(fields[19], 10, 64) // of 10 ms, since the start of the machine
	seconds, err2 := strconv.ParseFloat(up[0], 64)
	if err != nil || err2 != nil {
		return 0
	}
	return time.Now().UnixNano() - int64(seconds*1e9) + ticks*1e7
}

// keepsTrainer reports whether the victim's trainer lives on.
func keepsTrainer(what string) bool { return what == "daemon" || what == "leader" }

// lives reads what the trainers of a world wrote. What a killed one wrote ends with it and is left out.
func (j *run) lives(s *job.Status, what, victim string) (map[string][]moment, error) {
	out := map[string][]moment{}
	for _, id := range s.World {
		if !keepsTrainer(what) && id == victim {
			continue
		}
		index := id[strings.LastIndexByte(id, '/')+1:]
		moments, err := readMoments(filepath.Join(j.Dir, fmt.Sprintf("%s.%d.moments", index, s.Find(id).TrainerPID)))
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
	if keepsTrainer(what) {
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
		waited := !keepsTrainer(what) || id == victim || of != victim
		if waited && (first == 0 || moments[i].Decided < first) {
			first = moments[i].Decided
		}
	}
	w.First, w.Last = float64(first-at)/1e9, float64(last-at)/1e9
	return w, nil
}
