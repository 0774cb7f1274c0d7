// SPDX-License-Identifier: Apache-2.0

package mem_test

import (
	"errors"
	"testing"

	"phalanx/ckpt"
	"phalanx/ckpt/mem"
	"phalanx/ckpt/storetest"
)

func TestConformance(t *testing.T) {
	storetest.Test(t, func(*testing.T) ckpt.Store { return mem.New() })
}

func TestFaultyPassesConformanceWithoutFaults(t *testing.T) {
	storetest.Test(t, func(*testing.T) ckpt.Store {
		return mem.NewFaulty(mem.New(), func(mem.Op) mem.Fault { return mem.Fault{} })
	})
}

func TestFaults(t *testing.T) {
	lost := errors.New("answer lost")
	faults := map[string]mem.Fault{
		"before": {Err: lost},
		"after":  {Err: lost, After: true},
		"kill":   {Kill: true, After: true},
	}
	inner := mem.New()
	s := mem.NewFaulty(inner, func(op mem.Op) mem.Fault { return faults[op.Key] })
	ctx := t.Context()
	body := ckpt.Bytes([]byte("x"))
	if err := s.PutIfAbsent(ctx, "before", body); !errors.Is(err, lost) {
		t.Fatal(err)
	}
	if _, err := inner.Stat(ctx, "before"); !errors.Is(err, ckpt.ErrNotFound) {
		t.Fatalf("failed before and took effect: %v", err)
	}
	if err := s.PutIfAbsent(ctx, "after", body); !errors.Is(err, lost) {
		t.Fatal(err)
	}
	if _, err := inner.Stat(ctx, "after"); err != nil {
		t.Fatalf("failed after and took no effect: %v", err)
	}
	if err := s.Put(ctx, "kill", body); !errors.Is(err, mem.ErrKilled) {
		t.Fatal(err)
	}
	if _, err := s.Get(ctx, "kill", 0, -1); !errors.Is(err, mem.ErrKilled) {
		t.Fatalf("a dead process read: %v", err)
	}
	if _, err := inner.Stat(ctx, "kill"); err != nil {
		t.Fatal(err)
	}
}
