// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/binary"
	"math"
	"os"
	"path/filepath"
	"testing"

	"phalanx/scripts/internal/job"
)

func TestQuantilesAreValuesThatOccurred(t *testing.T) {
	var v []float64
	for i := 100; i > 0; i-- {
		v = append(v, float64(i))
	}
	if s := summarise(v); s != (summary{100, 1, 10, 50, 90, 95, 99, 100, 50.5}) {
		t.Errorf("summary of 1 to 100: %+v", s)
	}
	if s := summarise([]float64{7}); s.Min != 7 || s.P10 != 7 || s.P95 != 7 || s.Max != 7 {
		t.Errorf("summary of one value: %+v", s)
	}
	if s := summarise(nil); s != (summary{}) {
		t.Errorf("summary of nothing: %+v", s)
	}
}

func TestPartsOfARecoveryAddUp(t *testing.T) {
	const at = 1_000_000_000_000
	lost := []job.Incarnate{{Member: "bench/2", Incarnation: 1}}
	before := &job.Status{Leader: "bench/2", Step: 40}
	after := &job.Status{Transitions: []job.Transition{
		{UnixNS: at - 5e9, Lost: lost, Seconds: &job.Seconds{}}, // an earlier one of the same member
		{
			UnixNS: at + 15e6, Lost: lost, ResumeStep: 40, NewestStep: 41,
			Evidence: []job.Evidence{
				{About: job.Incarnate{Member: "bench/1", Incarnation: 1}, UnixNS: at - 3e6}, // of somebody else
				{About: job.Incarnate{Member: "bench/2", Incarnation: 1}, UnixNS: at + 9e6},
				{About: job.Incarnate{Member: "bench/2", Incarnation: 1}, UnixNS: at + 8e6},
			},
			Seconds: &job.Seconds{Detect: 0.003, Seal: 0.004, Agree: 0.005, Form: 0.006, FirstStep: 0.02},
		},
		{UnixNS: at + 300e6, Members: make([]string, ranks), Planned: true, Seconds: &job.Seconds{Agree: 0.01, Form: 0.01, Heal: 0.03, FirstStep: 0.01}},
	}}
	r, err := account(before, after, "bench/2", at)
	if err != nil {
		t.Fatal(err)
	}
	for name, pair := range map[string][2]float64{
		"detect": {r.Detect, 0.008}, "total": {r.Total, 0.046}, "by stamp": {r.Stamped, 0.046}, "full size": {r.FullSize, 0.36},
	} {
		if math.Abs(pair[0]-pair[1]) > 1e-9 {
			t.Errorf("%s is %g s, want %g", name, pair[0], pair[1])
		}
	}
	if !r.Leads || r.Recomputed != 1 {
		t.Errorf("leads %v, recomputed %d", r.Leads, r.Recomputed)
	}
	after.Transitions[1].Seconds = nil
	if r, err = account(before, after, "bench/2", at); err != nil || !r.Overtaken || r.Total != r.FullSize || r.Detect != 0.008 {
		t.Errorf("overtaken: %+v, %v", r, err)
	}
	after.Transitions[1].Evidence = nil
	if _, err := account(before, after, "bench/2", at); err == nil {
		t.Error("a change without evidence was accounted for")
	}
}

// A step whose votes were cast before the kill may be committed without the killed daemon, and does not count.
func TestStepAfterTheKillOfADaemon(t *testing.T) {
	lives := map[string][]moment{
		"bench/0": {{Step: 1, Generation: 3, Reduced: 10, Decided: 20}, {Step: 2, Generation: 3, Reduced: 90, Decided: 110}, {Step: 3, Generation: 3, Reduced: 120, Decided: 900}},
		"bench/1": {{Step: 1, Generation: 3, Reduced: 10, Decided: 20}, {Step: 2, Generation: 3, Reduced: 95, Decided: 800}, {Step: 3, Generation: 3, Reduced: 805, Decided: 850}},
	}
	w, err := timeOf("daemon", "bench/1", 100, lives)
	if err != nil {
		t.Fatal(err)
	}
	if w.Step != 3 || w.From != 3 || w.To != 3 || w.First != 750e-9 || w.Last != 800e-9 {
		t.Errorf("%+v", w)
	}
	if _, err := timeOf("trainer", "bench/2", 100, lives); err == nil {
		t.Error("no step of a later generation was committed, and one was found")
	}
}

func TestMomentsThatAreCutOffAreLeftOut(t *testing.T) {
	var b bytes.Buffer
	for step := range int64(3) {
		if err := binary.Write(&b, binary.LittleEndian, moment{Step: step, Applied: 7}); err != nil {
			t.Fatal(err)
		}
	}
	name := filepath.Join(t.TempDir(), "moments")
	if err := os.WriteFile(name, b.Bytes()[:b.Len()-5], 0o600); err != nil {
		t.Fatal(err)
	}
	moments, err := readMoments(name)
	if err != nil || len(moments) != 2 || moments[1] != (moment{Step: 1, Applied: 7}) {
		t.Errorf("%+v, %v", moments, err)
	}
}
