// SPDX-License-Identifier: Apache-2.0

package ckpt_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"phalanx/ckpt"
	"phalanx/ckpt/mem"
)

// The grace begins when a checkpoint is forgotten, not when somebody decided it and was stopped for a while.
func TestGraceBeginsWhenItIsForgotten(t *testing.T) {
	for name, stopped := range map[string]time.Duration{"at once": time.Second, "after a stop": time.Hour} {
		synctest.Test(t, func(t *testing.T) {
			inner := mem.New()
			states := tinySeries(t, inner, 4)
			s := mem.NewFaulty(inner, func(op mem.Op) mem.Fault {
				if op.Verb == mem.PutIfMatch && op.Key == ckpt.CommitKey("job", 1) {
					time.Sleep(stopped)
					stopped = 0
				}
				return mem.Fault{}
			})
			begin := time.Now()
			inv := inventory(t, s)
			if _, err := ckpt.Forget(t.Context(), s, inv, []ckpt.Drop{{Number: 1}}, ckpt.ForgetOptions{Now: begin, Grace: time.Hour}); err != nil {
				t.Fatal(err)
			}
			r, err := ckpt.ReadRecord(t.Context(), inner, "job", 1)
			if err != nil || r.Stub == nil {
				t.Fatal(r, err)
			}
			if left := time.Until(r.Stub.Until()); left < time.Hour-time.Minute || left > time.Hour {
				t.Errorf("%s: %s of the grace are left", name, left)
			}
			mustBeSound(t, inner, states, name)
		})
	}
}

// Stubs of format 1 are read, have no way back, and become swept ones.
func TestStubsOfFormat1(t *testing.T) {
	s := mem.New()
	states := tinySeries(t, s, 4)
	for n, swept := range map[uint64]string{1: "", 2: `,"swept":true`} {
		r, err := ckpt.ReadRecord(t.Context(), s, "job", n)
		if err != nil {
			t.Fatal(err)
		}
		old := fmt.Sprintf(`{"format":1,"kind":"stub","number":%d,"job":"job","attempt":%q,"branch":0,"step":%d,"generation":1,"unix_ns":5,"predecessor":%q,"sha256":%q%s}`,
			n, r.Commit.Attempt, r.Commit.Step, r.Commit.Predecessor, r.SHA256, swept)
		if err := s.Put(t.Context(), ckpt.CommitKey("job", n), ckpt.Bytes([]byte(old))); err != nil {
			t.Fatal(err)
		}
		if _, err := ckpt.Undelete(t.Context(), s, "job", n); !errors.Is(err, ckpt.ErrNotFound) || !strings.Contains(err.Error(), "for good") {
			t.Fatal(err)
		}
	}
	mustBeSound(t, s, states, "format 1")
	c, err := ckpt.GC(t.Context(), s, inventory(t, s), ckpt.GCOptions{Now: noon})
	if err != nil || len(c.Swept) != 2 || stepsLeft(t, s) != "3 4" {
		t.Fatal(c, err, stepsLeft(t, s))
	}
	if r, err := ckpt.ReadRecord(t.Context(), s, "job", 1); err != nil || r.Stub.At() != ckpt.Swept || r.Stub.Format != 2 {
		t.Fatal(r, err)
	}
	mustBeSound(t, s, states, "format 1, collected")
}

// unconditional is a store that cannot replace conditionally.
type unconditional struct{ *mem.Store }

func (u unconditional) Capabilities() ckpt.Capabilities {
	c := u.Store.Capabilities()
	c.ConditionalReplace = false
	return c
}

func (u unconditional) PutIfMatch(context.Context, string, string, ckpt.Body) error {
	return errors.New("not implemented")
}

func TestStoreWithoutConditions(t *testing.T) {
	inner := mem.New()
	states := tinySeries(t, inner, 5)
	s := unconditional{inner}
	if done, err := forget(t, s, time.Hour, 1, 2); err != nil || len(done.Numbers) != 2 {
		t.Fatal(done, err)
	}
	if _, err := ckpt.Undelete(t.Context(), s, "job", 1); !errors.Is(err, ckpt.ErrNoUndelete) {
		t.Fatal(err)
	}
	if _, err := ckpt.Pin(t.Context(), s, "job", 1, "ada", "", noon); !errors.Is(err, ckpt.ErrNoUndelete) {
		t.Fatal(err)
	}
	if all := objects(t, inner, "job/pins/"); len(all) != 0 {
		t.Fatal("a pin that keeps nothing", all)
	}
	if _, err := collect(t.Context(), s, noon.Add(time.Hour), nil); err != nil {
		t.Fatal(err)
	}
	if left := stepsLeft(t, inner); left != "3 4 5" {
		t.Fatal(left)
	}
	mustBeSound(t, inner, states, "unconditional")
}

// What was deleted before it was put back is not put back.
func TestUndeleteWantsTheData(t *testing.T) {
	s := mem.New()
	tinySeries(t, s, 4)
	if _, err := forget(t, s, time.Hour, 1); err != nil {
		t.Fatal(err)
	}
	before, err := s.Get(t.Context(), ckpt.CommitKey("job", 1), 0, -1)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Delete(t.Context(), "job/step-1-g1-a2.1/__0_0.distcp"); err != nil {
		t.Fatal(err)
	}
	if _, err := ckpt.Undelete(t.Context(), s, "job", 1); !errors.Is(err, ckpt.ErrIncomplete) {
		t.Fatal(err)
	}
	if after, err := s.Get(t.Context(), ckpt.CommitKey("job", 1), 0, -1); err != nil || !bytes.Equal(before, after) {
		t.Fatal(err)
	}
}
