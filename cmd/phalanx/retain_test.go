// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/binary"
	"strconv"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"phalanx"
	"phalanx/ckpt"
	"phalanx/ckpt/fs"
)

// steps is a state of one small tensor.
type steps uint64

func (s steps) Layout() []phalanx.TensorInfo {
	return []phalanx.TensorInfo{{Name: "w", DType: "i64", Shape: []int{4}}}
}

func (s steps) ReadAt(_ int, off int64, p []byte) error {
	var all [32]byte
	for i := range 4 {
		binary.LittleEndian.PutUint64(all[8*i:], uint64(s)+uint64(i))
	}
	copy(p, all[off:])
	return nil
}

// publishSome publishes checkpoints of steps 10, 20, … that are an hour apart, the last of them now: `publish STORE N`.
func publishSome(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: publish store n")
	}
	n, err := strconv.Atoi(args[1])
	ts.Check(err)
	store, err := fs.New(ts.MkAbs(args[0]))
	ts.Check(err)
	for i := 1; i <= n; i++ {
		write(ts, store, 10*i, time.Now().Add(-time.Duration(n-i)*time.Hour))
	}
}

// abandonOne writes a share of a step and does not publish it: `abandon STORE STEP`.
func abandonOne(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: abandon store step")
	}
	step, err := strconv.Atoi(args[1])
	ts.Check(err)
	store, err := fs.New(ts.MkAbs(args[0]))
	ts.Check(err)
	write(ts, store, step, time.Time{})
}

// write writes a checkpoint and publishes it, without a time it does not.
func write(ts *testscript.TestScript, store ckpt.Store, step int, at time.Time) {
	a := ckpt.Attempt{Job: "job", Step: phalanx.Step(step), Generation: phalanx.Generation{Number: 1}, Term: 1, Counter: uint64(step)}
	state := steps(step)
	plan, err := ckpt.NewPlan(0, state.Layout(), []phalanx.Rank{0}, ckpt.PlanOptions{})
	ts.Check(err)
	ref, err := ckpt.WriteShard(context.Background(), store, a, 0, plan, state)
	ts.Check(err)
	if at.IsZero() {
		return
	}
	_, err = ckpt.Publish(context.Background(), store, ckpt.Publication{Attempt: a, UnixNS: at.UnixNano(),
		Labels: []phalanx.Label{{Step: a.Step, Generation: a.Generation}}}, []ckpt.PartRef{ref})
	ts.Check(err)
}
