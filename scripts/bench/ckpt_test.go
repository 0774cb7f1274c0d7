// SPDX-License-Identifier: Apache-2.0

package main

import (
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// train makes moments of steps of 10 ms, of which 1 is spent in the library.
func train(steps int) (moments []moment) {
	at := int64(1e18)
	for step := range int64(steps) {
		moments = append(moments, moment{Step: step + 1, Generation: 1, Begun: at + 2e5, Summed: at + 9e6, Reduced: at + 9e6, Decided: at + 95e5, Applied: at + 1e7})
		at += 1e7
	}
	return moments
}

// delay makes one step longer in its optimizer, and all that follow later.
func delay(moments []moment, step int64, by int64) {
	for i := range moments {
		m := &moments[i]
		if m.Step > step {
			m.Begun, m.Summed, m.Reduced, m.Decided = m.Begun+by, m.Summed+by, m.Reduced+by, m.Decided+by
		}
		if m.Step >= step {
			m.Applied += by
		}
	}
}

func near(t *testing.T, what string, have, want float64) {
	t.Helper()
	if math.Abs(have-want) > 1e-6 {
		t.Errorf("%s is %g s, want %g", what, have, want)
	}
}

func TestCostOfASave(t *testing.T) {
	moments := train(100)
	delay(moments, 41, 3e7)                                    // the copy of step 40's state is waited for
	delay(moments, 43, 5e6)                                    // a writer took the processor
	published := []publishing{{40, moments[43].Applied + 4e6}} // in the middle of step 45
	s, quiet, err := costOfSave(moments, published[0], published)
	if err != nil {
		t.Fatal(err)
	}
	near(t, "blocked", s.Call, 0.030)
	near(t, "the longest step, beyond a quiet one,", s.Longest, 0.030)
	near(t, "durable", s.Durable, 0.040+0.030+0.005+0.004)
	near(t, "lost", s.Lost, 0.035)
	if len(quiet) != 20 || quiet[0] != 10 {
		t.Errorf("%d quiet steps, the first of %g ms", len(quiet), quiet[0])
	}
	if _, _, err := costOfSave(moments, publishing{100, moments[99].Applied}, published); err == nil {
		t.Error("the last step was saved and nothing is known of what followed, and a cost was found")
	}
	if _, _, err := costOfSave(moments, publishing{44, moments[50].Applied}, published); err == nil {
		t.Error("no quiet step lies between two saves, and a cost was found")
	}
	// The slowest rank counts.
	other := train(100)
	all, err := ofMoments([][]moment{other, moments}, published)
	if err != nil {
		t.Fatal(err)
	}
	near(t, "blocked, of two ranks,", all.Saves[0].Call, 0.030)
}

func TestPublishingsAreReadFromLogs(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "log"), 0o700); err != nil {
		t.Fatal(err)
	}
	log := "time=2026-12-01T09:50:18.125Z level=INFO msg=\"checkpoint published\" step=80 folder=step-80-g1-a2.2\n" +
		"time=2026-12-01T09:50:17.500Z level=INFO msg=\"checkpoint published\" step=40 folder=step-40-g1-a2.1\n" +
		"time=2026-12-01T09:50:19Z level=WARN msg=\"checkpoint not published\" step=120\n" +
		"level=INFO msg=\"checkpoint published\" step=160\n"
	if err := os.WriteFile(filepath.Join(dir, "log", "daemon-0.log"), []byte(log), 0o600); err != nil {
		t.Fatal(err)
	}
	found, err := publishings(dir)
	if err != nil || len(found) != 2 || found[0].step != 40 || found[1].at-found[0].at != 625e6 {
		t.Errorf("%+v, %v", found, err)
	}
}

func TestGrowthOfMemory(t *testing.T) {
	s := samples{{0, 100}, {1, 110}, {2, 500}, {3, 120}, {4, 900}, {5, 300}}
	if g := s.growth([][2]float64{{1.5, 3}, {4.5, 5}}); g != 390 {
		t.Errorf("growth %g, want that in the windows, 500 over the 110 before", g)
	}
	if g := s.growth(nil); g != 0 {
		t.Errorf("growth of no window: %g", g)
	}
}

// A page is written of what there is: with everything, and where a rival or a target is missing.
func TestPageOfCheckpoints(t *testing.T) {
	record := func(durable float64) save {
		return save{Begin: 1, End: 1 + durable, Call: 0.001, Durable: durable, Bytes: 1 << 30}
	}
	three := func(durable float64) []save { return []save{record(2 * durable), record(durable), record(durable)} }
	r := &ckptResults{Versions: map[string]string{"DCP": "2.15"}, Places: map[string]string{"tmpfs": "tmpfs", "s3": ""}}
	times := []float64{1, 2, 3}
	r.Cells = []*cell{
		{Name: "main", Target: "tmpfs", Ranks: 1, MiB: 1024, DType: "f32", StepMS: 10, By: []savesOf{
			{Who: "ours", What: "client and daemons", Saves: three(0.1)}, {Who: "ours", What: "verified load", Load: true, Saves: three(0.1)},
			{Who: "DCP", What: "save", Saves: three(0.5)}, {Who: "DCP", What: "async", Saves: three(0.2)}, {Who: "DCP", What: "load", Load: true, Saves: three(0.5)},
		}, Alone: &layerTimes{Copy: times, CopyAll: times, RawWrite: times, Save: times, RawRead: times, Load: times, Verify: times}},
		{Name: "disk", Target: "disk", Ranks: 1, MiB: 1024, DType: "bf16", StepMS: 10},
	}
	r.Aims = r.ckptAims()
	met := map[string]int{}
	for _, a := range r.Aims {
		met[a.Key+" "+a.Verdict()]++
	}
	if met["stall met"] != 2 || met["load met"] != 1 || met["save missed"] != 2 {
		t.Errorf("aims: %v", met)
	}
	folder := t.TempDir()
	if err := write(folder, "ckpt", pageCkpt, r); err != nil {
		t.Fatal(err)
	}
	page := read(filepath.Join(folder, "ckpt.md"))
	for _, want := range []string{"| **ours**, client and daemons | 1.0 (1.0–1.0)", "| DCP load | 0.500 (0.500–0.500) | 2.00 | 5.0 |", "1 GiB bfloat16, 1 rank, disk"} {
		if !strings.Contains(page, want) {
			t.Errorf("the page lacks %q:\n%s", want, page)
		}
	}
}
