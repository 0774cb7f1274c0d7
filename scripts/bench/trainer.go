// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"phalanx"
	"phalanx/client"
	"phalanx/kernels"
)

const trainerVerb = "trainer"

// moment is what a trainer writes down about a step, all by CLOCK_REALTIME in nanoseconds. It is stored as little-endian
// 64-bit words.
type moment struct {
	Step, Generation int64
	Begun            int64 // Begin has returned
	Summed           int64 // the mean gradient is there; it is digested next
	Reduced          int64 // the vote is posted next
	Decided          int64 // Vote has returned
	Applied          int64 // Apply has returned
}

// schedule is what the trainer does in which step: first warm steps with a reduction, then bare ones without, then reduced
// ones, then one that reduces again and again.
type schedule struct {
	elements, slots     int
	warm, bare, reduced int
	loops               int
	floor               time.Duration // of the time before the reduction, as if something were computed
	out                 string
	last                phalanx.Step
	unbuffered          bool // write each step at once, since the process may be killed
}

func trainerMain(args []string) int {
	var s schedule
	f := flag.NewFlagSet(trainerVerb, flag.ContinueOnError)
	f.IntVar(&s.elements, "elements", 16<<10, "float32 of a gradient")
	f.IntVar(&s.slots, "slots", ranks, "of the job")
	f.IntVar(&s.warm, "warm", 20, "steps before anything is measured")
	f.IntVar(&s.bare, "bare", 0, "steps without a reduction")
	f.IntVar(&s.reduced, "reduced", 0, "steps with a reduction")
	f.IntVar(&s.loops, "loops", 0, "reductions in the last step")
	f.DurationVar(&s.floor, "floor", 0, "least time of a step")
	f.StringVar(&s.out, "out", "", "folder for what was measured")
	if err := f.Parse(args); err != nil {
		return 2
	}
	s.unbuffered = s.floor > 0
	s.last = phalanx.Step(s.warm + s.bare + s.reduced + min(1, s.loops))
	err := s.train(context.Background())
	switch {
	case err == nil:
		return 0
	case errors.Is(err, client.ErrPreempted), errors.Is(err, client.ErrOrphaned):
		return client.ExitPreempted
	}
	fmt.Fprintf(os.Stderr, "bench trainer: %v\n", err)
	return 1
}

// train takes part in the job. The step is empty: what remains is the protocol.
func (s *schedule) train(ctx context.Context) (err error) {
	c, err := client.Dial(ctx)
	if err != nil {
		return err
	}
	state := make([]float32, 1024)
	tensors := []kernels.Tensor{{Name: "weight", DType: "f32", Shape: []int{len(state)}, Data: kernels.Bytes(state)}}
	err = c.Hello(ctx, client.Config{
		Spec:  phalanx.JobSpec{LastStep: s.last, Seed: 1, Slots: s.slots, GlobalBatch: s.slots, DataLength: 1, GroupSize: 1, Threads: 1, Settings: "bench"},
		State: tensors, GradientElements: s.elements,
		Apply:  func(phalanx.Step) error { return nil },
		Logger: slog.New(slog.NewTextHandler(os.Stderr, nil)),
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	index := filepath.Base(os.Getenv("PHALANX_MEMBER"))
	file, err := os.Create(filepath.Join(s.out, fmt.Sprintf("%s.%d.moments", index, os.Getpid())))
	if err != nil {
		return err
	}
	w := bufio.NewWriterSize(file, 1<<20)
	defer func() { err = errors.Join(err, w.Flush(), file.Close()) }()
	for {
		b, err := c.Begin(ctx)
		if errors.Is(err, client.ErrDone) {
			err = c.Finish(ctx, kernels.Digest(0, tensors))
			if errors.Is(err, client.ErrRepeat) {
				continue
			}
			return err
		}
		if err != nil {
			return err
		}
		m := moment{Step: int64(b.Step), Generation: int64(b.Generation.Number), Begun: time.Now().UnixNano()}
		err = s.step(ctx, c, b, &m)
		if errors.Is(err, phalanx.ErrRevoked) {
			continue
		}
		if err != nil {
			return err
		}
		if m.Applied == 0 {
			continue
		}
		if err := binary.Write(w, binary.LittleEndian, m); err != nil {
			return err
		}
		if s.unbuffered {
			if err := w.Flush(); err != nil {
				return err
			}
		}
	}
}

// step does what the schedule says of a step, votes and applies. m.Applied stays 0 when the step is not decided here.
func (s *schedule) step(ctx context.Context, c *client.Client, b client.Begin, m *moment) error {
	if s.floor > 0 {
		time.Sleep(s.floor) // stands for the computation
	}
	n := int(b.Step)
	bare := n > s.warm && n <= s.warm+s.bare
	var gradient []float32
	switch {
	case bare:
	case s.loops > 0 && b.Step == s.last:
		if err := s.loop(ctx, c, b); err != nil {
			return err
		}
	default:
		s.fill(c, b)
		var err error
		if gradient, err = c.AllReduce(ctx, true); err != nil {
			return err
		}
		if err := s.check(gradient[:1], gradient[len(gradient)-1:]); err != nil {
			return err
		}
	}
	m.Summed = time.Now().UnixNano()
	digest := phalanx.Digest{1} // a bare step has none
	if gradient != nil {
		digest = c.GradientDigest(gradient)
	}
	m.Reduced = time.Now().UnixNano()
	committed, err := c.Vote(ctx, client.Vote{OK: true, Digest: digest})
	if err != nil || !committed {
		return err
	}
	m.Decided = time.Now().UnixNano()
	if err := c.Apply(); err != nil {
		if errors.Is(err, client.ErrIllegal) {
			return nil // wound back in between; nothing was applied
		}
		return err
	}
	m.Applied = time.Now().UnixNano()
	return nil
}

// fill folds a gradient whose mean is known: slot s holds s + 1 everywhere.
func (s *schedule) fill(c *client.Client, b client.Begin) {
	fold := c.Fold()
	for slot := b.Slots.First; slot < b.Slots.End; slot++ {
		g := fold.Slot(slot)
		for i := range g {
			g[i] = float32(slot + 1)
		}
		fold.Done(slot)
	}
}

// check compares with the mean of what fill makes, which is exact in float32.
func (s *schedule) check(parts ...[]float32) error {
	mean := float32(s.slots+1) / 2
	for _, g := range parts {
		for i, v := range g {
			if v != mean {
				return fmt.Errorf("element %d of the mean gradient is %g, not %g", i, v, mean)
			}
		}
	}
	return nil
}

// loop reduces what lies in the segment again and again. Ranks stay in step by the reduction itself.
func (s *schedule) loop(ctx context.Context, c *client.Client, b client.Begin) error {
	s.fill(c, b)
	if err := c.Barrier(ctx); err != nil {
		return err
	}
	const discard = 3 // memory is touched for the first time
	var text strings.Builder
	var gradient []float32
	for i := range s.loops + discard {
		began := time.Now()
		var err error
		if gradient, err = c.AllReduce(ctx, true); err != nil {
			return err
		}
		took := time.Since(began)
		if i >= discard {
			fmt.Fprintln(&text, took.Nanoseconds())
		}
	}
	if err := s.check(gradient); err != nil {
		return err
	}
	name := filepath.Join(s.out, fmt.Sprintf("%d.loops", b.Rank))
	return os.WriteFile(name, []byte(text.String()), 0o600)
}

// readMoments reads what one life of a trainer wrote. A last record that was cut off by a kill is left out.
func readMoments(name string) ([]moment, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	r := bufio.NewReader(f)
	var out []moment
	for {
		var m moment
		err := binary.Read(r, binary.LittleEndian, &m)
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return out, nil
		}
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", name, err)
		}
		out = append(out, m)
	}
}
