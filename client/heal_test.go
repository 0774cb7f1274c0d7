// SPDX-License-Identifier: Apache-2.0

package client

import (
	"encoding/binary"
	"slices"
	"testing"
	"testing/synctest"

	"phalanx"
	"phalanx/client/wire"
	"phalanx/kernels"
)

// donorState is the state that a heal delivers, with the digests in the segment.
func (r *rig) donorState() (state []kernels.Tensor, label phalanx.Label) {
	state = []kernels.Tensor{
		{Name: "w", DType: "f32", Shape: []int{5}, Data: kernels.Bytes([]float32{9, 8, 7, 6, 5})},
		{Name: "count", DType: "i64", Shape: []int{1}, Data: kernels.Bytes([]int64{2})},
	}
	r.putDigests(state)
	return state, phalanx.Label{Step: 2, Generation: generation(1), Digest: digest1}
}

// deliver fills one tensor through place i of D_FILL.
func (r *rig) deliver(i, tensor int, sequence uint64, data []byte) wire.Status {
	copy(r.segment[r.healOffset:], data)
	g, _ := r.page.ReadSeat()
	r.page.WriteFill(i, wire.Fill{Generation: g.Generation, Sequence: sequence, Tensor: tensor, Length: int64(len(data)), SegmentOffset: r.healOffset})
	r.settle()
	answered, status := wire.ParseAnswer(r.page.Filled(i))
	if answered != sequence {
		r.Fatalf("fill %d: answered %d", sequence, answered)
	}
	return status
}

func (r *rig) endHealAt(sequence uint64, l phalanx.Label, count int) wire.HealResult {
	g, _ := r.page.ReadSeat()
	r.page.WriteHealEnd(wire.HealEnd{Generation: g.Generation, Sequence: sequence, LabelStep: l.Step, LabelGeneration: l.Generation, LabelDigest: l.Digest,
		DigestsOffset: r.digestOffset, DigestsCount: count})
	r.settle()
	result, _ := r.page.ReadHealResult()
	if result.Sequence != sequence {
		r.Fatalf("heal end %d: result %+v", sequence, result)
	}
	return result
}

func TestHeal(t *testing.T) {
	inBubble(t, func(r *rig) {
		state, label := r.donorState()
		c := r.begin()
		r.seat(wire.ActionHeal, 2, label)
		a, _ := r.page.ReadApplied()
		h, _ := r.page.ReadHealing()
		if a.Valid || !h.On || h.Generation != generation(2) || !r.torn() || r.w[0] != 1 || !slices.Equal(r.coordinates, []int{0}) {
			r.Fatalf("before the first byte: applied %+v, healing %+v, w %v, coordinates %v", a, h, r.w, r.coordinates)
		}
		if s := r.deliver(0, 0, 1, state[0].Data); s != wire.StatusOK || r.w[0] != 9 {
			r.Fatalf("fill: %s, w %v", s, r.w)
		}
		// Out of range, of another generation, and a source that is not what its digests say.
		r.page.WriteFill(1, wire.Fill{Generation: generation(2), Sequence: 1, Tensor: 0, Offset: 16, Length: 8, SegmentOffset: r.healOffset})
		r.page.WriteFill(2, wire.Fill{Generation: generation(1), Sequence: 1, Tensor: 0, Length: 8})
		r.page.WriteFill(3, wire.Fill{Generation: generation(2), Sequence: 1, Tensor: 0, Offset: -8, Length: 8, SegmentOffset: 1<<63 - 4})
		r.settle()
		for i, want := range []wire.Status{wire.StatusFailed, wire.StatusRevoked, wire.StatusFailed} {
			if _, got := wire.ParseAnswer(r.page.Filled(i + 1)); got != want {
				r.Errorf("bad fill %d: %s, want %s", i+1, got, want)
			}
		}
		if got := r.endHealAt(1, label, 2); got.OK || got.Why != wire.WhyStateUnequal || got.Tensor != 1 {
			r.Fatalf("unfinished heal: %+v", got)
		}
		if got := r.endHealAt(2, label, 3); got.OK || got.Why != wire.WhyCountWrong {
			r.Errorf("wrong count: %+v", got)
		}
		if a, _ := r.page.ReadApplied(); a.Valid || !r.torn() || c.ended() {
			r.Fatalf("after a failed heal: %+v, begin ended %v", a, c.ended())
		}
		if s := r.deliver(0, 1, 2, state[1].Data); s != wire.StatusOK {
			r.Fatal(s)
		}
		if got := r.endHealAt(3, label, 2); !got.OK || got.Why != wire.WhyNone {
			r.Fatalf("heal: %+v", got)
		}
		if r.label() != label || r.torn() || r.count[0] != 2 || c.ended() {
			r.Errorf("healed to %v, torn %v, count %v, begin ended %v", r.label(), r.torn(), r.count, c.ended())
		}
		if w, _ := r.page.ReadBegin(); w.Step != 3 || !w.Waiting {
			r.Errorf("after the heal the page says %+v", w)
		}
		r.seat(wire.ActionRun, 2, label)
		if b := must(r, c); b.Step != 3 || !b.Healed {
			r.Errorf("begun %+v", b)
		}
	})
}

// A heal belongs to one generation: in the next one nothing delivered before counts, and the state stays void meanwhile.
func TestHealOverTwoGenerations(t *testing.T) {
	inBubble(t, func(r *rig) {
		state, label := r.donorState()
		c := r.begin()
		r.seat(wire.ActionHeal, 2, label)
		r.deliver(0, 0, 1, state[0].Data)
		r.seat(wire.ActionPark, 3, phalanx.Label{})
		r.seat(wire.ActionRun, 3, phalanx.Label{})
		if c.ended() || !r.torn() {
			r.Fatalf("a half healed state was taken for whole: begin ended %v, torn %v", c.ended(), r.torn())
		}
		r.seat(wire.ActionHeal, 4, label)
		if h, _ := r.page.ReadHealing(); h.Generation != generation(4) {
			r.Errorf("healing %+v", h)
		}
		r.page.WriteHealEnd(wire.HealEnd{Generation: generation(2), Sequence: 1, DigestsOffset: r.digestOffset, DigestsCount: 2})
		r.settle()
		if _, n := r.page.ReadHealResult(); n != 0 {
			r.Error("the end of the old heal was answered")
		}
		r.deliver(0, 0, 2, state[0].Data)
		r.deliver(0, 1, 3, state[1].Data)
		if got := r.endHealAt(2, label, 2); !got.OK {
			r.Errorf("heal: %+v", got)
		}
	})
}

func TestServe(t *testing.T) {
	inBubble(t, func(r *rig) {
		ask := func(i int, s wire.Serve) wire.Status {
			r.page.WriteServe(i, s)
			r.settle()
			sequence, status := wire.ParseAnswer(r.page.Served(i))
			if sequence != s.Sequence {
				r.Fatalf("%+v: answered %d", s, sequence)
			}
			return status
		}
		c := r.begin()
		r.seat(wire.ActionPark, 2, phalanx.Label{})
		g := generation(2)
		if s := ask(0, wire.Serve{Generation: g, Sequence: 1, Kind: wire.ServeKindDigests, Length: 32, SegmentOffset: r.healOffset}); s != wire.StatusOK {
			r.Fatalf("digests: %s", s)
		}
		for i, tensor := range r.config().State {
			at := r.segment[r.healOffset+int64(16*i):]
			if d := kernels.TensorDigest(0, tensor); binary.LittleEndian.Uint64(at) != d[0] || binary.LittleEndian.Uint64(at[8:]) != d[1] {
				r.Errorf("digest of %s differs", tensor.Name)
			}
		}
		read := wire.Serve{Generation: g, Sequence: 2, Kind: wire.ServeKindRead, Tensor: 0, Offset: 4, Length: 8, SegmentOffset: r.healOffset}
		if s := ask(7, read); s != wire.StatusOK || !slices.Equal(kernels.F32s(r.segment[r.healOffset:][:8]), []float32{2, 3}) {
			r.Errorf("read: %s, %v", s, r.segment[r.healOffset:][:8])
		}
		for name, c := range map[string]struct {
			change func(*wire.Serve)
			want   wire.Status
		}{
			"another generation": {func(s *wire.Serve) { s.Generation = generation(1) }, wire.StatusRevoked},
			"no such tensor":     {func(s *wire.Serve) { s.Tensor = 2 }, wire.StatusFailed},
			"beyond the tensor":  {func(s *wire.Serve) { s.Length = 17 }, wire.StatusFailed},
			"beyond the segment": {func(s *wire.Serve) { s.SegmentOffset = int64(len(r.segment)) - 7 }, wire.StatusFailed},
			"overflow":           {func(s *wire.Serve) { s.Offset = 1<<63 - 1 }, wire.StatusFailed},
			"unknown kind":       {func(s *wire.Serve) { s.Kind = 9 }, wire.StatusFailed},
			"digests too short":  {func(s *wire.Serve) { s.Kind, s.Length = wire.ServeKindDigests, 31 }, wire.StatusFailed},
		} {
			read.Sequence++
			bad := read
			c.change(&bad)
			if got := ask(7, bad); got != c.want {
				r.Errorf("%s: %s, want %s", name, got, c.want)
			}
		}
		// It is served in the wait for a vote too, and never from a void state.
		r.seat(wire.ActionRun, 2, phalanx.Label{})
		must(r, c)
		v := r.vote(true, digest1)
		read.Sequence++
		if s := ask(7, read); s != wire.StatusOK || v.ended() {
			r.Errorf("read during a vote: %s", s)
		}
		r.seat(wire.ActionHeal, 3, phalanx.Label{})
		must(r, v)
		r.begin()
		read.Sequence, read.Generation = read.Sequence+1, generation(3)
		if s := ask(7, read); s != wire.StatusFailed {
			r.Errorf("read from a void state: %s", s)
		}
		r.seat(wire.ActionFenced, 4, phalanx.Label{}) // ends the begin
	})
}

func TestStagingEndsBeforeApplying(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.page.WriteSave(wire.Save{Step: 1, Sequence: 7})
		r.seat(wire.ActionRun, 1, phalanx.Label{})
		r.step(1, digest1)
		if _, n := r.page.ReadStaged(); n != 0 {
			r.Fatal("a save of step 1 was answered before it was applied and begin called")
		}
		// The save is held back by the abort flag's owner only: here the copy is fast, so look at the order on the page.
		r.beforeApply = func() {
			s, _ := r.page.ReadStaged()
			h, _ := r.Client.slabs[0].ReadHeader()
			if !s.OK || s.Sequence != 7 || s.Step != 1 || h.State != wire.SlabStateFull || h.LabelStep != 1 || r.staging != nil {
				r.Errorf("the optimizer of step 2 runs: staged %+v, slab %+v", s, h)
			}
			if w := kernels.F32s(r.Client.slabs[0].Tensor(0)); !slices.Equal(w, r.w) || kernels.I64s(r.Client.slabs[0].Tensor(1))[0] != 1 {
				r.Errorf("the slab holds %v", w)
			}
		}
		r.step(1, digest1)
		h, _ := r.Client.slabs[0].ReadHeader()
		if want := (phalanx.Label{Step: 1, Generation: generation(1), Digest: digest1}); h.Label() != want || h.Sequence != 7 || h.LayoutHash != r.Client.slabs[0].Layout().Hash {
			r.Errorf("slab header %+v", h)
		}
		r.beforeApply = nil
		// Missed, aborted before it began, and one that leaves.
		for sequence, save := range map[uint64]wire.Save{8: {Step: 1}, 9: {Step: 2, Abort: true}} {
			save.Sequence = max(sequence, r.answer+1)
			r.page.WriteSave(save)
			c := r.begin()
			s, _ := r.page.ReadStaged()
			if s.OK || s.Sequence != save.Sequence || s.Step != save.Step || !c.ended() {
				r.Errorf("save %+v: staged %+v", save, s)
			}
		}
		r.page.WriteSave(wire.Save{Step: 2, Sequence: 20})
		r.seat(wire.ActionStop, 2, phalanx.Label{})
		_, err := r.Begin(r.Context())
		r.wantErr(err, ErrPreempted)
		if s, _ := r.page.ReadStaged(); !s.OK || s.Sequence != 20 || s.Step != 2 {
			r.Errorf("staged before leaving: %+v", s)
		}
	})
}

// Saves go into the slabs by turns, as their sequences say. What the other slab holds stays.
func TestTwoSlabs(t *testing.T) {
	inBubble(t, func(r *rig) {
		second, err := wire.NewSlab(kernels.Bytes(make([]uint64, 1024)), r.slabs[0].Layout())
		if err != nil {
			r.Fatal(err)
		}
		r.slabs = append(r.slabs, second)
		r.seat(wire.ActionRun, 1, phalanx.Label{})
		held := func() (steps [2]phalanx.Step) {
			for i, s := range r.slabs {
				if h, _ := s.ReadHeader(); h.State == wire.SlabStateFull {
					steps[i] = h.LabelStep
				}
			}
			return steps
		}
		for _, c := range []struct {
			step     phalanx.Step
			sequence uint64
			want     [2]phalanx.Step
		}{{1, 7, [2]phalanx.Step{0, 1}}, {2, 8, [2]phalanx.Step{2, 1}}, {3, 10, [2]phalanx.Step{3, 1}}} {
			r.step(1, digest1)
			r.page.WriteSave(wire.Save{Step: c.step, Sequence: c.sequence})
			staged := r.begin()
			for s, _ := r.page.ReadStaged(); s.Sequence != c.sequence; s, _ = r.page.ReadStaged() {
				r.own.Wait(r.own.Count(), waitSlice)
			}
			if !staged.ended() {
				r.Fatal("begin waits")
			}
			if s, _ := r.page.ReadStaged(); !s.OK || s.Step != c.step || held() != c.want {
				r.Errorf("save %d of step %d: staged %+v, the slabs hold %v, want %v", c.sequence, c.step, s, held(), c.want)
			}
		}
	})
}

// A staging that runs is joined by apply, ended without result by a heal, and given up by an abort.
func TestStagingAbort(t *testing.T) {
	inBubble(t, func(r *rig) {
		s := &staging{sequence: 3, slab: r.slabs[0], done: make(chan struct{})}
		s.abort.Store(true)
		r.stage(s, r.Client.applied)
		h, _ := r.Client.slabs[0].ReadHeader()
		if got, _ := r.page.ReadStaged(); got.OK || got.Sequence != 3 || h.State != wire.SlabStateFree {
			r.Errorf("staged %+v, slab %+v", got, h)
		}
		// joinStaging sees an abort that the daemon writes while the owner waits in it.
		s = &staging{sequence: 4, done: make(chan struct{})}
		r.staging = s
		joined := start(func() (struct{}, error) { r.joinStaging(); return struct{}{}, nil })
		r.page.WriteSave(wire.Save{Sequence: 4, Abort: true})
		for !s.abort.Load() {
			r.own.Wait(r.own.Count(), waitSlice)
		}
		if joined.ended() {
			r.Fatal("joined a staging that runs")
		}
		close(s.done)
		synctest.Wait()
		must(r, joined)
	})
}
