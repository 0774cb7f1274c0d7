// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"phalanx/scripts/internal/job"
)

// save is one save, as those that it disturbs saw it; the slowest rank counts. Seconds; begin and end since 1970.
type save struct {
	Begin   float64 `json:"begin"`
	End     float64 `json:"end"`
	Call    float64 `json:"call"`    // the trainer was blocked by the save itself
	Longest float64 `json:"longest"` // the longest step meanwhile, over the median of quiet ones
	Lost    float64 `json:"lost"`    // all time until durable, less the steps done meanwhile at their quiet speed
	Durable float64 `json:"durable"` // until everything is stored; ours: published
	Bytes   int64   `json:"bytes"`   // stored
}

// savesOf are the saves, or loads, of somebody in one cell.
type savesOf struct {
	Who   string  `json:"who"`
	What  string  `json:"what"`
	Load  bool    `json:"load,omitempty"`
	Saves []save  `json:"saves"` // the first of the process first
	Quiet summary `json:"quiet_step_ms"`

	TrainerMiB float64 `json:"trainer_mib"` // peak growth of anonymous memory, all trainers and what they started together
	DaemonMiB  float64 `json:"daemon_mib"`  // likewise of daemons
	SharedMiB  float64 `json:"shared_mib"`  // shared memory at the end, all processes together
}

// measureJob lets a job of real daemons save while synthetic trainers train, then loads what it saved.
func (p ckptPlan) measureJob(ctx context.Context, c *cell, dir string) error {
	place := p.place(c, "job-"+c.Name)
	defer os.RemoveAll(place) // of an URL: nothing
	// Between two saves there is as much peace as the others get, whatever a save takes.
	every := max(40, int((0.6+float64(c.MiB)/600)*1e3/c.StepMS))
	j, err := job.Start(job.Plan{
		Bin: p.bin, Dir: dir, Every: 100 * time.Millisecond,
		Flags: []string{"--host", "bench", "--nproc", strconv.Itoa(c.Ranks), "--job", benchJob, "--store", place, "--keep", "100",
			"--save-every", strconv.Itoa(every)},
		Command: []string{p.self, saverVerb, "-out", dir, "-mib", strconv.Itoa(c.MiB), "-ranks", strconv.Itoa(c.Ranks), "-dtype", c.DType,
			"-step", fmt.Sprint(time.Duration(c.StepMS * float64(time.Millisecond)))},
	})
	if err != nil {
		return err
	}
	ended := false
	end := func() {
		if !ended {
			ended = true
			j.End(time.Millisecond) // what it would save now nobody wants
		}
	}
	defer end()
	var trainers, daemons []int
	s, err := j.Until(ctx, "all ranks train", func(s *job.Status) bool { return s.Whole(c.Ranks) && s.Fresh && s.Step > 0 })
	if err != nil {
		return err
	}
	for _, id := range s.World {
		trainers, daemons = append(trainers, s.Find(id).TrainerPID), append(daemons, s.Find(id).DaemonPID)
	}
	stopTrainers, stopDaemons := watchMemory(func() []int { return trainers }), watchMemory(func() []int { return daemons })
	published, err := untilPublished(ctx, j, p.reps+1)
	shared := sharedMiB(slices.Concat(trainers, daemons))
	ofTrainers, ofDaemons := stopTrainers(), stopDaemons()
	if err != nil {
		return err
	}
	lives, err := livesUntil(ctx, dir, trainers, published[len(published)-1].at)
	end()
	if err != nil {
		return err
	}
	ours, err := ofMoments(lives, published)
	if err != nil {
		return err
	}
	var windows [][2]float64
	for _, v := range ours.Saves {
		windows = append(windows, [2]float64{v.Begin, v.End})
	}
	ours.TrainerMiB, ours.DaemonMiB, ours.SharedMiB = ofTrainers.growth(windows), ofDaemons.growth(windows), shared
	ours.Who, ours.What = "ours", "client and daemons"
	loads, err := p.measureLoads(ctx, place, c)
	if err != nil {
		return err
	}
	for i := range ours.Saves {
		ours.Saves[i].Bytes = loads.Saves[0].Bytes
	}
	c.By = append(c.By, *ours, *loads)
	return nil
}

// livesUntil reads what the trainers wrote down, once all have written of a step after a moment.
func livesUntil(ctx context.Context, dir string, trainers []int, after int64) ([][]moment, error) {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	for {
		var lives [][]moment
		whole := true
		for i, pid := range trainers {
			moments, err := readMoments(filepath.Join(dir, fmt.Sprintf("%d.%d.moments", i, pid)))
			if err != nil {
				return nil, err
			}
			lives = append(lives, moments)
			whole = whole && len(moments) > 0 && moments[len(moments)-1].Applied > after
		}
		if whole {
			return lives, nil
		}
		if err := job.Pause(ctx, 50*time.Millisecond); err != nil {
			return nil, fmt.Errorf("trainers stopped before the last save was published: %w", err)
		}
	}
}

// measureLoads restores what a job saved, all ranks' shares in one process, and verifies it.
func (p ckptPlan) measureLoads(ctx context.Context, place string, c *cell) (*savesOf, error) {
	var told layerTimes
	seen, err := tell(ctx, &told, p.self, layerVerb, "-load", "-store", place, "-reps", strconv.Itoa(p.reps+1))
	if err != nil {
		return nil, err
	}
	if told.Bytes != int64(c.MiB)<<20 {
		return nil, fmt.Errorf("restored %d bytes of %d MiB", told.Bytes, c.MiB)
	}
	out := &savesOf{Who: "ours", What: "verified load", Load: true, TrainerMiB: seen.growth(told.Windows["load"])}
	for i, took := range told.Load {
		w := told.Windows["load"][i]
		out.Saves = append(out.Saves, save{Begin: w[0], End: w[1], Call: took, Durable: took, Bytes: told.Stored})
	}
	return out, nil
}

// publishing is a checkpoint that the daemons tell of.
type publishing struct {
	step int64
	at   int64 // Unix nanoseconds
}

// untilPublished waits until the daemons' logs tell of n published checkpoints.
func untilPublished(ctx context.Context, j *job.Job, n int) ([]publishing, error) {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Minute)
	defer cancel()
	for {
		found, err := publishings(j.Dir)
		if err != nil {
			return nil, err
		}
		if len(found) >= n {
			return found[:n], nil
		}
		select {
		case <-j.Ended:
			return nil, fmt.Errorf("the job ended after %d of %d saves\n%s", len(found), n, j.Tail())
		case <-ctx.Done():
			return nil, fmt.Errorf("%d of %d saves were published: %w\n%s", len(found), n, ctx.Err(), j.Tail())
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// publishings reads the logs of a job's daemons.
func publishings(dir string) ([]publishing, error) {
	names, err := filepath.Glob(filepath.Join(dir, "log", "*daemon*.log"))
	if err != nil {
		return nil, err
	}
	var out []publishing
	for _, name := range names {
		b, err := os.ReadFile(name)
		if err != nil {
			return nil, err
		}
		lines := bufio.NewScanner(bytes.NewReader(b))
		for lines.Scan() {
			if v, ok := publishingOf(lines.Text()); ok {
				out = append(out, v)
			}
		}
	}
	slices.SortFunc(out, func(a, b publishing) int { return int(a.step - b.step) })
	return out, nil
}

// publishingOf reads one line of a log.
func publishingOf(line string) (publishing, bool) {
	if !strings.Contains(line, `msg="checkpoint published"`) {
		return publishing{}, false
	}
	var v publishing
	for _, field := range strings.Fields(line) {
		key, value, _ := strings.Cut(field, "=")
		switch key {
		case "time":
			at, err := time.Parse(time.RFC3339Nano, value)
			if err != nil {
				return publishing{}, false
			}
			v.at = at.UnixNano()
		case "step":
			v.step, _ = strconv.ParseInt(value, 10, 64) // 0 is none
		}
	}
	return v, v.step > 0 && v.at > 0
}

// ofMoments finds what each save cost the trainers. A save begins when its step is applied.
func ofMoments(lives [][]moment, published []publishing) (*savesOf, error) {
	out := &savesOf{}
	var allQuiet []float64
	for _, v := range published {
		worst := save{}
		for _, moments := range lives {
			one, quiet, err := costOfSave(moments, v, published)
			if err != nil {
				return nil, err
			}
			allQuiet = append(allQuiet, quiet...)
			if worst.Begin == 0 || one.Begin < worst.Begin {
				worst.Begin = one.Begin
			}
			worst.End = max(worst.End, one.End)
			worst.Call, worst.Longest, worst.Lost = max(worst.Call, one.Call), max(worst.Longest, one.Longest), max(worst.Lost, one.Lost)
		}
		worst.Durable = worst.End - worst.Begin
		out.Saves = append(out.Saves, worst)
	}
	out.Quiet = summarise(allQuiet)
	return out, nil
}

// costOfSave is one save as one rank saw it, and the milliseconds of its quiet steps before it.
func costOfSave(moments []moment, v publishing, published []publishing) (save, []float64, error) {
	first := slices.IndexFunc(moments, func(m moment) bool { return m.Step == v.step })
	if first < 1 || first+1 >= len(moments) {
		return save{}, nil, fmt.Errorf("step %d, which was saved, is not among the %d steps that a trainer wrote down", v.step, len(moments))
	}
	from := int64(0) // quiet steps are those since the save before this one
	for _, o := range published {
		if o.step < v.step {
			from = max(from, o.at)
		}
	}
	began := moments[first].Applied
	s := save{Begin: float64(began) / 1e9, End: float64(v.at) / 1e9}
	var quiet, blocked []float64
	// A save is staged between the step that it is of and the optimizer of the next one, so only these calls can wait for it.
	inCalls := func(i int) float64 {
		return float64(moments[i].Begun-moments[i-1].Applied+moments[i].Applied-moments[i].Decided) / 1e9
	}
	for i := 1; i <= first; i++ {
		if moments[i-1].Applied > from && moments[i].Step > 20 { // the first ones warm up
			quiet = append(quiet, float64(moments[i].Applied-moments[i-1].Applied)/1e9)
			blocked = append(blocked, inCalls(i))
		}
	}
	if len(quiet) < 5 {
		return save{}, nil, fmt.Errorf("%d quiet steps before step %d was saved", len(quiet), v.step)
	}
	usual := summarise(quiet)
	s.Call = max(0, inCalls(first+1)-summarise(blocked).P50)
	done := 0.0
	for i := first + 1; i < len(moments) && moments[i-1].Applied < v.at; i++ {
		took := float64(moments[i].Applied-moments[i-1].Applied) / 1e9
		s.Longest = max(s.Longest, took-usual.P50)
		if moments[i].Applied <= v.at {
			done++
		} else {
			done += float64(v.at-moments[i-1].Applied) / float64(moments[i].Applied-moments[i-1].Applied)
		}
	}
	s.Durable = s.End - s.Begin
	s.Lost = s.Durable - done*usual.Mean
	ms := make([]float64, len(quiet))
	for i, q := range quiet {
		ms[i] = 1e3 * q
	}
	return s, ms, nil
}
