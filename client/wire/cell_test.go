// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"slices"
	"sync"
	"testing"

	"phalanx"
)

// A writer that is killed after any number of its stores leaves the old payload or, after the last, the new one; the next
// writer goes on from there.
func TestCellSurvivesKillAtAnyStore(t *testing.T) {
	const words = 5
	payload := func(v uint64) []uint64 { return slices.Repeat([]uint64{v}, words) }
	for before := range 4 { // writes that ended before the killed one: none, and both current copies
		for kill := range words + 2 {
			cell := make([]uint64, 1+2*words)
			for v := range before {
				writeCell(cell, payload(uint64(v+1)))
			}
			stores := 0
			for i, v := range cellStores(cell[0], payload(100)) {
				if stores == kill {
					break
				}
				cell[i] = v
				stores++
			}
			want, count := uint64(before), uint64(before)
			if kill > words {
				want, count = 100, count+1
			}
			got := make([]uint64, words)
			if n := readCell(cell, got); n != count || n > 0 && !slices.Equal(got, payload(want)) {
				t.Fatalf("killed after %d stores of write %d: count %d, %v; want count %d, all %d", kill, before+1, n, got, count, want)
			}
			writeCell(cell, payload(200))
			if n := readCell(cell, got); n != count+1 || !slices.Equal(got, payload(200)) {
				t.Fatalf("successor after %d stores: count %d, %v", kill, n, got)
			}
		}
	}
}

// A reader beside a writer never sees a mixed payload and never goes back. Run it with -race too.
func TestCellReaderBesideWriter(t *testing.T) {
	p := NewPage(0, 1)
	const writes = 20000
	var group sync.WaitGroup
	group.Go(func() {
		for n := uint64(1); n <= writes; n++ {
			p.WriteSeat(Seat{Generation: phalanx.Generation{Epoch: uint32(n), Number: n}, Branch: n, LastStep: phalanx.Step(n), ResumeDigest: phalanx.Digest{n, n}})
		}
	})
	last := uint64(0)
	for last < writes {
		v, sequence := p.ReadSeat()
		if sequence < last {
			t.Fatalf("count fell from %d to %d", last, sequence)
		}
		last = sequence
		n := v.Branch
		if n != sequence || v.Generation.Number != n || v.LastStep != phalanx.Step(n) || v.ResumeDigest != (phalanx.Digest{n, n}) {
			t.Fatalf("mixed payload at count %d: %+v", sequence, v)
		}
	}
	group.Wait()
}

func TestPayloadsRoundTrip(t *testing.T) {
	p := NewPage(4, 5)
	identity := Identity{Member: "host-7.example/12", Incarnation: 3, Boot0: 1, Boot1: ^uint64(0), DaemonPID: 77, Index: 12, SlabBytes: 1 << 40, State: LifeLeaving}
	p.WriteIdentity(identity)
	if got, n := p.ReadIdentity(); got != identity || n != 1 {
		t.Errorf("identity: %+v, %d", got, n)
	}
	remote := Remote{Generation: phalanx.Generation{Epoch: 1, Number: 9}, Step: 4, Set: [4]uint64{1, 2, 3, 4}, OKSet: [4]uint64{0, 0, 0, 8}, Unequal: true}
	remote.Digests[7] = phalanx.Digest{5, 6}
	p.WriteRemote(remote)
	if got, _ := p.ReadRemote(); got != remote {
		t.Errorf("remote: %+v", got)
	}
	applied := Applied{Step: 3, Coordinate: AnyCoordinate, Valid: true}
	p.WriteApplied(applied)
	if got, _ := p.ReadApplied(); got != applied {
		t.Errorf("applied: %+v", got)
	}
	seat := Seat{Rank: phalanx.NoRank, Action: ActionFenced}
	p.WriteSeat(seat)
	if got, _ := p.ReadSeat(); got != seat {
		t.Errorf("seat: %+v", got)
	}
	for i := range FillCount {
		p.WriteFill(i, Fill{Sequence: uint64(i) + 1, Tensor: i})
	}
	for i := range FillCount {
		if got, _ := p.ReadFill(i); got.Tensor != i || got.Sequence != uint64(i)+1 {
			t.Errorf("fill %d: %+v", i, got)
		}
	}
	if _, n := p.ReadCommit(); n != 0 {
		t.Errorf("a cell that was never written has count %d", n)
	}
}

func TestRing(t *testing.T) {
	p := NewPage(0, 1)
	for n := uint64(1); n <= 3*DescriptorCount; n++ {
		want := Descriptor{Op: OpAllReduce, DType: DTypeF32, Count: int64(n), OutOffset: -1}
		want.Sequence = p.Post(want)
		if got := p.ReadDescriptor(n); want.Sequence != n || got != want || p.RingHead() != n {
			t.Fatalf("descriptor %d: %+v, head %d", n, got, p.RingHead())
		}
		if s := p.Completion(n); s != StatusNone {
			t.Fatalf("descriptor %d is %s before it was completed", n, s)
		}
		p.CompleteDescriptor(n, StatusRevoked)
		if s := p.Completion(n); s != StatusRevoked {
			t.Fatalf("descriptor %d is %s", n, s)
		}
	}
}

func TestTorn(t *testing.T) {
	g := phalanx.Generation{Number: 2}
	ok := Applied{Step: 5, Generation: g, Valid: true}
	for _, c := range []struct {
		name     string
		applying Applying
		applied  Applied
		healing  Healing
		want     bool
	}{
		{"whole", Applying{Step: 5, Generation: g}, ok, Healing{}, false},
		{"optimizer runs", Applying{Step: 6, Generation: g}, ok, Healing{}, true},
		{"same step of another branch", Applying{Step: 5, Generation: g.Next()}, ok, Healing{}, true},
		{"healing", Applying{Step: 5, Generation: g}, ok, Healing{On: true}, true},
		{"voided", Applying{Step: 5, Generation: g}, Applied{Step: 5, Generation: g}, Healing{}, true},
	} {
		if got := Torn(c.applying, c.applied, c.healing); got != c.want {
			t.Errorf("%s: torn is %v", c.name, got)
		}
	}
}
