// SPDX-License-Identifier: Apache-2.0

// Command large is a trainer for tests whose state is as large as they want and costs nearly nothing to train. Every step changes
// each page of it, so that a state that was torn, or is of another step, has another digest than an undisturbed run's.
package main

import (
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"time"

	"phalanx"
	"phalanx/client"
	"phalanx/kernels"
)

const (
	tensors = 4
	page    = 4096
)

func main() {
	mib := flag.Int("mib", 64, "size of the state")
	steps := flag.Uint64("steps", 100, "train until step `N` is committed")
	floor := flag.Duration("step-floor", 20*time.Millisecond, "how long a step takes at least")
	alone := flag.Bool("alone", false, "train without a daemon")
	flag.Parse()
	s := newState(*mib)
	err := error(nil)
	if *alone {
		for step := phalanx.Step(1); step <= phalanx.Step(*steps); step++ {
			_ = s.apply(step) // never fails
		}
	} else {
		err = train(context.Background(), s, phalanx.Step(*steps), *floor)
	}
	switch {
	case err == nil:
		fmt.Printf("final step=%d digest=%s\n", *steps, s.digest())
	case errors.Is(err, client.ErrPreempted), errors.Is(err, client.ErrOrphaned):
		os.Exit(client.ExitPreempted)
	default:
		fmt.Fprintf(os.Stderr, "large: %v\n", err)
		os.Exit(1)
	}
}

// state is a few tensors of bytes.
type state []kernels.Tensor

func newState(mib int) state {
	var s state
	for i := range tensors {
		b := make([]byte, mib<<20/tensors)
		for at := 0; at < len(b); at += 8 {
			binary.LittleEndian.PutUint64(b[at:], uint64(at)*0x9e3779b97f4a7c15+uint64(i))
		}
		s = append(s, kernels.Tensor{Name: fmt.Sprintf("part.%d", i), DType: "u8", Shape: []int{len(b)}, Data: b})
	}
	return s
}

// apply is the optimizer: the state of a step depends on all steps before.
func (s state) apply(step phalanx.Step) error {
	for _, t := range s {
		for at := 0; at < len(t.Data); at += page {
			p := t.Data[at:]
			binary.LittleEndian.PutUint64(p, (binary.LittleEndian.Uint64(p)^uint64(step))*0x9e3779b97f4a7c15)
		}
	}
	return nil
}

func (s state) digest() phalanx.Digest { return kernels.Digest(0, s) }

func train(ctx context.Context, s state, steps phalanx.Step, floor time.Duration) (err error) {
	c, err := client.Dial(ctx)
	if err != nil {
		return err
	}
	err = c.Hello(ctx, client.Config{
		Spec:  phalanx.JobSpec{LastStep: steps, Seed: 1, Slots: 4, GlobalBatch: 4, DataLength: 1, GroupSize: 1, Threads: 1, Settings: "large"},
		State: s, Apply: s.apply, Logger: slog.New(slog.NewTextHandler(os.Stderr, nil)),
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	for {
		b, err := c.Begin(ctx)
		if errors.Is(err, client.ErrDone) {
			if err = c.Finish(ctx, s.digest()); errors.Is(err, client.ErrRepeat) {
				continue
			}
			return err
		}
		if err != nil {
			return err
		}
		for slot := b.Slots.First; slot < b.Slots.End; slot++ {
			c.Working(b.Step, slot)
		}
		time.Sleep(floor) // the computation
		committed, err := c.Vote(ctx, client.Vote{OK: true, Digest: phalanx.Digest{1, uint64(b.Step)}})
		if errors.Is(err, phalanx.ErrRevoked) || err == nil && !committed {
			continue
		}
		if err == nil {
			err = c.Apply()
		}
		if err != nil {
			return err
		}
	}
}
