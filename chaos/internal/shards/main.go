// SPDX-License-Identifier: Apache-2.0

// Command shards is a trainer for tests whose model is cut among the ranks of a replica group, as fully sharded training cuts it: by
// rows or by columns, unevenly, some ranks with nothing of a tensor. Each element learns by itself, from numbers that depend on
// its place in the whole tensor, so the whole state after a step is the same, bit for bit, however it is cut.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"time"

	"phalanx"
	"phalanx/client"
	"phalanx/client/wire"
	"phalanx/kernels"
)

// options are the flags.
type options struct {
	spec   phalanx.JobSpec
	floor  time.Duration
	own    bool
	extra  bool
	wide   bool
	anyhow bool
	record string
}

func main() {
	o := options{spec: phalanx.JobSpec{DataLength: 1, Threads: 1, Settings: "shards"}}
	flag.Uint64Var((*uint64)(&o.spec.LastStep), "steps", 100, "train until step `N` is committed")
	flag.Uint64Var(&o.spec.Seed, "seed", 1, "of the initial state and the gradients")
	flag.IntVar(&o.spec.Slots, "slots", 8, "`K` slots")
	flag.IntVar(&o.spec.GroupSize, "group-size", 1, "cut the model among `G` ranks")
	flag.DurationVar(&o.floor, "step-floor", 0, "let each step take at least `DURATION`")
	flag.BoolVar(&o.own, "per-rank", false, "have a tensor that each rank has of its own, too")
	flag.BoolVar(&o.extra, "extra", false, "have one tensor more")
	flag.BoolVar(&o.wide, "f64", false, "hold the columns as f64")
	flag.BoolVar(&o.anyhow, "anywhere", false, "do not ask for a place: say nothing of a coordinate")
	flag.StringVar(&o.record, "record", "", "append a line for each step applied to `FILE`")
	flag.Parse()
	o.spec.GlobalBatch = o.spec.Slots
	if err := run(context.Background(), &o); err != nil {
		fmt.Fprintln(os.Stderr, "shards:", err)
		var refusal *wire.Error
		switch {
		case errors.Is(err, client.ErrPreempted):
			os.Exit(75)
		case errors.As(err, &refusal):
			os.Exit(2)
		}
		os.Exit(1)
	}
}

func run(ctx context.Context, o *options) (err error) {
	c, err := client.Dial(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	place, pin := 0, phalanx.AnyPlace
	if o.spec.GroupSize > 1 && !o.anyhow {
		if place, err = c.Place(ctx, o.spec.GroupSize); err != nil {
			return err
		}
		pin = phalanx.PinTo(place)
	}
	m := newModel(o, place)
	t := &trainer{options: o, client: c, model: m}
	err = c.Hello(ctx, client.Config{
		Spec: o.spec, State: m.state(), Global: m.boxes(), PerRank: map[string]bool{"own": true}, Pin: pin, GradientElements: m.elements(),
		Apply: t.apply, Logger: slog.New(slog.NewTextHandler(os.Stderr, nil)),
	})
	if err != nil {
		return err
	}
	return t.train(ctx)
}

// trainer runs the steps.
type trainer struct {
	*options
	client   *client.Client
	model    *model
	begun    client.Begin
	gradient []float32
}

func (t *trainer) train(ctx context.Context) error {
	for {
		b, err := t.client.Begin(ctx)
		if errors.Is(err, client.ErrDone) {
			fmt.Printf("final step=%d coordinate=%d\n", t.model.count[0], t.model.coordinate)
			if err = t.client.Finish(ctx, t.model.digest()); !errors.Is(err, client.ErrRepeat) {
				return err
			}
			continue
		}
		if err != nil {
			return err
		}
		if err := t.step(ctx, b); err != nil && !errors.Is(err, phalanx.ErrRevoked) {
			return err
		}
	}
}

func (t *trainer) step(ctx context.Context, b client.Begin) error {
	t.begun = b
	end := time.Now().Add(t.floor)
	fold := t.client.Fold()
	for slot := b.Slots.First; slot < b.Slots.End; slot++ {
		t.client.Working(b.Step, slot)
		t.model.backward(b.Step, slot, fold.Slot(slot))
		fold.Done(slot)
	}
	time.Sleep(time.Until(end))
	gradient, err := t.client.AllReduce(ctx, true)
	if err != nil {
		return err
	}
	t.gradient = gradient
	committed, err := t.client.Vote(ctx, client.Vote{OK: true, Digest: t.client.GradientDigest(gradient)})
	if err != nil || !committed {
		return err
	}
	if err := t.client.Apply(); !errors.Is(err, client.ErrIllegal) {
		return err
	}
	return nil // wound back meanwhile
}

func (t *trainer) apply(step phalanx.Step) error {
	t.model.apply(step, t.gradient)
	if t.record == "" {
		return nil
	}
	f, err := os.OpenFile(t.record, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(f, "step=%d member=%s coordinate=%d group=%d digest=%s\n", step, os.Getenv("PHALANX_MEMBER"), t.model.coordinate, t.spec.GroupSize, t.model.digest())
	return errors.Join(err, f.Close())
}

// digest leaves out what is this rank's own.
func (m *model) digest() phalanx.Digest {
	return kernels.Digest(0, slices.DeleteFunc(m.state(), func(t kernels.Tensor) bool { return t.Name == "own" }))
}
