// SPDX-License-Identifier: Apache-2.0

package lm

import (
	"encoding/json"
	"flag"
	"os"
	"slices"
	"testing"

	"phalanx"
)

var rewriteSamples = flag.Bool("rewrite-samples", false, "write the samples that the Python package is compared with")

// TestPythonHasTheSameSamples: python/csrc/sample.c deals samples as this package does.
func TestPythonHasTheSameSamples(t *testing.T) {
	const path = "../../../python/tests/samples.json"
	type one struct {
		Seed        uint64       `json:"seed"`
		Count       int64        `json:"count"`
		GlobalBatch int          `json:"global_batch"`
		Slots       int          `json:"slots"`
		Step        phalanx.Step `json:"step"`
		Slot        phalanx.Slot `json:"slot"`
		Samples     []int64      `json:"samples"`
	}
	var all []one
	for _, c := range []one{
		{Seed: 0, Count: 1, GlobalBatch: 4, Slots: 2, Step: 3, Slot: 1},
		{Seed: 1, Count: 1000, GlobalBatch: 48, Slots: 12, Step: 1, Slot: 0},
		{Seed: 1, Count: 1000, GlobalBatch: 48, Slots: 12, Step: 21, Slot: 10},
		{Seed: 1<<64 - 1, Count: 7, GlobalBatch: 30, Slots: 5, Step: 2, Slot: 4},
		{Seed: 7, Count: 1 << 40, GlobalBatch: 64, Slots: 16, Step: 1 << 33, Slot: 15},
	} {
		c.Samples = Sampler{Seed: c.Seed, Count: c.Count, GlobalBatch: c.GlobalBatch, Slots: c.Slots}.Samples(nil, c.Step, c.Slot)
		all = append(all, c)
	}
	if *rewriteSamples {
		b, err := json.MarshalIndent(all, "", " ")
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, append(b, '\n'), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var want []one
	if err := json.Unmarshal(b, &want); err != nil {
		t.Fatal(err)
	}
	if !slices.EqualFunc(all, want, func(a, b one) bool { return a.Step == b.Step && slices.Equal(a.Samples, b.Samples) }) {
		t.Fatalf("%s has %v, this package deals %v", path, want, all)
	}
}
