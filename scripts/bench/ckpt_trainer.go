// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"phalanx"
	"phalanx/client"
	"phalanx/kernels"
)

const saverVerb = "saver"

// saver is a trainer whose state is large and whose step is real compute of a given length. Every step changes one element of
// each tensor, so that a copy that is torn does not have the digest of any state.
type saver struct {
	mib, ranks int
	dtype      string
	step       time.Duration
	out        string

	state *memoryState
	a, b  []float32 // of the compute, in the processor's cache
	loops int
}

func saverMain(args []string) int {
	var s saver
	f := flag.NewFlagSet(saverVerb, flag.ContinueOnError)
	f.IntVar(&s.mib, "mib", 64, "size of the state of all ranks together")
	f.IntVar(&s.ranks, "ranks", 1, "ranks that hold it together")
	f.StringVar(&s.dtype, "dtype", "f32", "f32 or bf16")
	f.DurationVar(&s.step, "step", 10*time.Millisecond, "compute of a step")
	f.StringVar(&s.out, "out", "", "folder for what was measured")
	if err := f.Parse(args); err != nil {
		return 2
	}
	err := s.train(context.Background())
	switch {
	case err == nil:
		return 0
	case errors.Is(err, client.ErrPreempted), errors.Is(err, client.ErrOrphaned):
		return client.ExitPreempted
	}
	fmt.Fprintf(os.Stderr, "bench saver: %v\n", err)
	return 1
}

// calibrate finds how much compute a step is, by the median of some: neighbours only take.
func (s *saver) calibrate() {
	s.a, s.b = make([]float32, 8<<10), make([]float32, 8<<10)
	for i := range s.b {
		s.b[i] = 1e-6
	}
	var took []float64
	s.loops = 200
	for range 31 {
		began := time.Now()
		s.compute()
		took = append(took, time.Since(began).Seconds())
	}
	slices.Sort(took)
	s.loops = max(1, int(s.step.Seconds()/took[len(took)/2]*float64(s.loops)))
}

func (s *saver) compute() {
	for range s.loops {
		kernels.AddF32(s.a, s.a, s.b)
	}
}

func (s *saver) train(ctx context.Context) (err error) {
	c, err := client.Dial(ctx)
	if err != nil {
		return err
	}
	rank, err := strconv.Atoi(os.Getenv("RANK"))
	if err != nil {
		return fmt.Errorf("RANK: %w", err)
	}
	s.state = newState(s.mib/s.ranks, s.dtype, 1+100*uint64(rank))
	s.calibrate()
	cfg := client.Config{
		Spec: phalanx.JobSpec{LastStep: 1 << 40, Seed: 1, Slots: s.ranks, GlobalBatch: s.ranks, DataLength: 1, GroupSize: 1, Threads: 1, Settings: "bench"},
		Apply: func(step phalanx.Step) error {
			for _, b := range s.state.data {
				binary.LittleEndian.PutUint32(b, uint32(step)&0xffff)
			}
			return nil
		},
		PerRank: map[string]bool{}, Logger: slog.New(slog.NewTextHandler(os.Stderr, nil)),
	}
	for i, t := range s.state.layout {
		cfg.State = append(cfg.State, kernels.Tensor{Name: t.Name, DType: t.DType, Shape: t.Shape, Data: s.state.data[i]})
		cfg.PerRank[t.Name] = s.ranks > 1 // so each rank saves its share and no other
	}
	if err := c.Hello(ctx, cfg); err != nil {
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
			return c.Finish(ctx, phalanx.Digest{1})
		}
		if err != nil {
			return err
		}
		m := moment{Step: int64(b.Step), Generation: int64(b.Generation.Number), Begun: time.Now().UnixNano()}
		s.compute()
		m.Summed = time.Now().UnixNano()
		m.Reduced = m.Summed
		committed, err := c.Vote(ctx, client.Vote{OK: true, Digest: phalanx.Digest{1}})
		if errors.Is(err, phalanx.ErrRevoked) {
			continue
		}
		if err != nil {
			return err
		}
		if !committed {
			continue
		}
		m.Decided = time.Now().UnixNano()
		if err := c.Apply(); err != nil {
			return err
		}
		m.Applied = time.Now().UnixNano()
		if err := binary.Write(w, binary.LittleEndian, m); err != nil {
			return err
		}
		if b.Step%16 == 0 { // the process is stopped when enough is known
			if err := w.Flush(); err != nil {
				return err
			}
		}
	}
}
