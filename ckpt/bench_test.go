// SPDX-License-Identifier: Apache-2.0

package ckpt_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"phalanx"
	"phalanx/ckpt"
	"phalanx/ckpt/fs"
	"phalanx/ckpt/mem"
)

// discard takes everything and keeps nothing: what is left is the writer's own work.
type discard struct{ ckpt.Store }

func (discard) PutIfAbsent(context.Context, string, ckpt.Body) error { return nil }

// A share of 256 MiB, to nowhere and to a directory in memory. `make bench-ckpt` measures the whole path and others beside it.
func BenchmarkWriteShard(b *testing.B) {
	layout := []phalanx.TensorInfo{}
	for i := range 16 {
		layout = append(layout, phalanx.TensorInfo{Name: fmt.Sprint("t", i), DType: "f32", Shape: []int{4096, 1024}})
	}
	st := newState(layout[:1], 1)
	for _, t := range layout[1:] {
		st.layout, st.content = append(st.layout, t), append(st.content, st.content[0])
	}
	for _, container := range []string{ckpt.ContainerDCP, ckpt.ContainerRaw} {
		for _, puts := range []int{1, 3} {
			plan, err := ckpt.NewPlan(0, layout, []phalanx.Rank{0}, ckpt.PlanOptions{Container: container, Puts: puts, ObjectBytes: 32 << 20})
			if err != nil {
				b.Fatal(err)
			}
			for _, where := range []string{"nowhere", "tmpfs"} {
				b.Run(fmt.Sprintf("%s/%s/puts=%d", where, container, puts), func(b *testing.B) {
					dir, err := os.MkdirTemp("/dev/shm", "bench-ckpt-")
					if err != nil {
						b.Fatal(err)
					}
					defer os.RemoveAll(dir)
					var s ckpt.Store = discard{mem.New()}
					if where == "tmpfs" {
						if s, err = fs.New(filepath.Join(dir, "store")); err != nil {
							b.Fatal(err)
						}
					}
					b.SetBytes(plan.Shards[0].Bytes)
					for i := 0; b.Loop(); i++ {
						if _, err := ckpt.WriteShard(b.Context(), s, attempt(i, 1, 1), 0, plan, st); err != nil {
							b.Fatal(err)
						}
						b.StopTimer()
						_ = os.RemoveAll(filepath.Join(dir, "store", "job"))
						b.StartTimer()
					}
				})
			}
		}
	}
}
