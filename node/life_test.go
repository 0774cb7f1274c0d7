// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"encoding/binary"
	"errors"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"phalanx"
	"phalanx/client/wire"
	"phalanx/elastic"
)

func layout() []phalanx.TensorInfo {
	return []phalanx.TensorInfo{{Name: "w", DType: "f32", Shape: []int{8, 4}}, {Name: "b", DType: "f32", Shape: []int{8}}}
}

// hello is what a trainer that is this process would say.
func hello() *wire.Hello {
	pid, start := selfProcess()
	return &wire.Hello{PID: pid, Start: start, ProtocolMin: wire.Protocol, ProtocolMax: wire.Protocol, State: layout(), SegmentBytes: 10000,
		Spec: phalanx.JobSpec{LastStep: 3, Slots: 1, GlobalBatch: 1, GroupSize: 1}}
}

func begin(t *testing.T, p Paths, index int, who phalanx.Incarnate) *life {
	t.Helper()
	l, err := newLife(p, index, who)
	if err != nil {
		t.Fatal(err)
	}
	l.identify(kernel{}, index, false)
	return l
}

func unmap(t *testing.T, l *life) {
	t.Helper()
	if err := l.unmap(); err != nil {
		t.Error(err)
	}
}

func TestAdoptFindsNothingOnAFreshHost(t *testing.T) {
	l, err := adoptLife(NewPaths(t.TempDir(), t.TempDir()), 0, "h/0", 0)
	if l != nil || err != nil {
		t.Errorf("adopted %v, %v", l, err)
	}
}

// What a daemon wrote on its page before it died binds its successor.
func TestPromisesOutliveTheDaemon(t *testing.T) {
	p := NewPaths(t.TempDir(), t.TempDir())
	who := incarnate("h", 1, 4)
	g := phalanx.Generation{Epoch: 1, Number: 6}
	l := begin(t, p, 1, who)
	if got := l.promises(); got != (elastic.Page{}) {
		t.Errorf("a new page promises %+v", got)
	}
	l.page.WriteSealed(wire.Sealed{Generation: g})
	l.page.WriteVote(wire.Vote{Generation: g, Step: 8, OK: true, Digest: phalanx.Digest{1, 2}})
	l.page.WriteRefusal(wire.Refusal{Generation: g, Step: 7, Who: 1, Why: wire.WhyVoteNotOK})
	l.page.WriteCommit(wire.Commit{Generation: g, Step: 6})
	want := elastic.Page{Sealed: g, Vote: elastic.Vote{Generation: g, Step: 8, OK: true, Digest: phalanx.Digest{1, 2}},
		Refused: elastic.Refusal{Generation: g, Step: 7, Who: 1, Why: phalanx.VotedNotOK}, Told: elastic.WriteCommit{Generation: g, Step: 6}}
	if got := l.promises(); got != want {
		t.Errorf("promises %+v, want %+v", got, want)
	}
	unmap(t, l)

	again, err := adoptLife(p, 1, who.Member, 0)
	if err != nil || again == nil {
		t.Fatalf("adopted %v, %v", again, err)
	}
	defer unmap(t, again)
	if again.who != who || again.promises() != want {
		t.Errorf("adopted %s with %+v", again.who, again.promises())
	}
	if again.trainer != nil || again.segment != nil || again.helloPID != 0 {
		t.Error("a trainer was adopted that never was")
	}
}

func TestAdoptTakesTheNewestLife(t *testing.T) {
	p := NewPaths(t.TempDir(), t.TempDir())
	for n := range phalanx.Incarnation(3) {
		unmap(t, begin(t, p, 0, incarnate("h", 0, n+9)))
	}
	l, err := adoptLife(p, 0, "h/0", 0)
	if err != nil || l == nil || l.who.Incarnation != 11 {
		t.Fatalf("adopted %v, %v", l, err)
	}
	unmap(t, l)
}

// A page that was made on another boot, for another member, for another life, or never used, holds no promise of this one.
func TestAdoptIgnoresForeignPages(t *testing.T) {
	boot0, boot1 := bootWords(kernel{})
	if boot0 == 0 || boot1 == 0 {
		t.Fatal("no boot id")
	}
	whole := wire.Identity{Member: "h/0", Incarnation: 3, Boot0: boot0, Boot1: boot1}
	for name, change := range map[string]func(*wire.Identity){
		"another boot":        func(v *wire.Identity) { v.Boot0 ^= 1 },
		"another boot's rest": func(v *wire.Identity) { v.Boot1 ^= 1 },
		"another member":      func(v *wire.Identity) { v.Member = "g/0" },
		"another life":        func(v *wire.Identity) { v.Incarnation = 2 },
		"never used":          nil,
	} {
		t.Run(name, func(t *testing.T) {
			p := NewPaths(t.TempDir(), t.TempDir())
			l, err := newLife(p, 0, incarnate("h", 0, 3))
			if err != nil {
				t.Fatal(err)
			}
			if change != nil {
				v := whole
				change(&v)
				l.page.WriteIdentity(v)
			}
			unmap(t, l)
			if l, err := adoptLife(p, 0, "h/0", 0); l != nil || err != nil {
				t.Errorf("adopted %v, %v", l, err)
			}
			if l, err := adoptLife(p, 0, "h/0", 0); l != nil || err != nil {
				t.Errorf("the first look left something behind: %v, %v", l, err)
			}
		})
	}
}

func TestAdoptRefusesAPageInUse(t *testing.T) {
	p := NewPaths(t.TempDir(), t.TempDir())
	l := begin(t, p, 0, incarnate("h", 0, 1))
	_, err := adoptLife(p, 0, "h/0", 20*time.Millisecond)
	var problem *Problem
	if !errors.As(err, &problem) || problem.Code != CodeLocked {
		t.Errorf("a held page: %v", err)
	}
	time.AfterFunc(50*time.Millisecond, func() { _ = l.unmap() }) // the old daemon ends while its successor waits
	again, err := adoptLife(p, 0, "h/0", 20*time.Second)
	if err != nil || again == nil {
		t.Fatalf("adopted %v, %v", again, err)
	}
	unmap(t, again)
}

func TestNewLifeIsNeverAnOldOne(t *testing.T) {
	p := NewPaths(t.TempDir(), t.TempDir())
	unmap(t, begin(t, p, 0, incarnate("h", 0, 1)))
	if l, err := newLife(p, 0, incarnate("h", 0, 1)); err == nil {
		unmap(t, l)
		t.Error("an incarnation was used twice")
	}
}

// The trainer's memory has the trainer's part, the expected digests and the rings apart from each other, and is found again.
func TestOutfitIsFoundAgain(t *testing.T) {
	p := NewPaths(t.TempDir(), t.TempDir())
	who := incarnate("h", 2, 5)
	l := begin(t, p, 2, who)
	h := hello()
	h.Coordinate = phalanx.PinTo(0)
	if err := l.outfit(p, 2, h); err != nil {
		t.Fatal(err)
	}
	l.identify(kernel{}, 2, false)
	size := int64(len(l.segment.Bytes()))
	if d := l.digestOffset(); d < h.SegmentBytes || d+int64(len(h.State))*digestSize > l.serveSlot(0) {
		t.Errorf("digests at %d lie on the trainer's %d bytes or on the ring at %d", d, h.SegmentBytes, l.serveSlot(0))
	}
	if l.serveSlot(wire.ServeCount) != l.fillSlot(0) || l.fillSlot(wire.FillCount) != size {
		t.Errorf("rings from %d, %d end at %d of %d", l.serveSlot(0), l.fillSlot(0), l.fillSlot(wire.FillCount), size)
	}
	if l.spec == nil || *l.spec != h.Spec || !slices.EqualFunc(l.layout, h.State, phalanx.TensorInfo.Equal) {
		t.Error("the hello is not kept")
	}
	if got := l.slabLabels(); got != nil {
		t.Errorf("a new slab holds %v", got)
	}
	label := phalanx.Label{Step: 4, Generation: phalanx.Generation{Epoch: 1, Number: 1}, Digest: phalanx.Digest{7, 8}}
	l.slabs[0].WriteHeader(wire.SlabHeader{State: wire.SlabStateFull, LayoutHash: l.slabs[0].Layout().Hash, LabelStep: label.Step, LabelGeneration: label.Generation, LabelDigest: label.Digest})
	if got := l.slabLabels(); !slices.Equal(got, []phalanx.Label{label}) {
		t.Errorf("the slab holds %v, want %s", got, label)
	}
	if err := l.addSlab(p, 2, l.slabs[0].Layout()); err != nil {
		t.Fatal(err)
	}
	second := label
	second.Step = 6
	l.slabs[1].WriteHeader(wire.SlabHeader{State: wire.SlabStateFull, LayoutHash: l.slabs[1].Layout().Hash, LabelStep: second.Step, LabelGeneration: label.Generation, LabelDigest: label.Digest})
	if got := l.slabLabels(); !slices.Equal(got, []phalanx.Label{label, second}) {
		t.Errorf("the slabs hold %v", got)
	}
	ring := l.ring
	unmap(t, l)

	again, err := adoptLife(p, 2, who.Member, 0)
	if err != nil || again == nil {
		t.Fatalf("adopted %v, %v", again, err)
	}
	defer unmap(t, again)
	if again.spec == nil || *again.spec != h.Spec || again.pin != h.Coordinate || !slices.EqualFunc(again.said, h.State, phalanx.TensorInfo.Equal) {
		t.Errorf("what the trainer registered is found as %+v at %s: %v", again.spec, again.pin, again.said)
	}
	if again.ring != ring || again.trainer == nil || again.trainer.pid != os.Getpid() || again.helloStart != h.Start {
		t.Errorf("adopted ring %d, trainer %+v", again.ring, again.trainer)
	}
	if err := again.openSlab(p, 2, nil); err != nil || again.slabs != nil {
		t.Errorf("a slab without a layout: %v", err)
	}
	if err := again.openSlab(p, 2, layout()); err != nil {
		t.Fatal(err)
	}
	if got := again.slabLabels(); !slices.Equal(got, []phalanx.Label{label, second}) {
		t.Errorf("the adopted slabs hold %v", got)
	}
	again.slabs[0].WriteHeader(wire.SlabHeader{State: wire.SlabStateFilling}) // killed while it staged
	old := openOldSlabs(p, 2, 5, laidOut(layout()))
	if len(old) != 1 || old[0].label != second || old[0].life != 5 {
		t.Fatalf("the slabs of an earlier life: %+v", old)
	}
	if err := old[0].region.Unmap(); err != nil {
		t.Error(err)
	}
	if old := openOldSlabs(p, 2, 5, laidOut(layout()[:1])); len(old) > 0 {
		t.Error("a slab of another layout is taken")
	}
	if old := openOldSlabs(p, 2, 6, laidOut(layout())); len(old) > 0 {
		t.Error("a slab that never was is taken")
	}
	if p.Remove(2, 5); len(openOldSlabs(p, 2, 5, laidOut(layout()))) > 0 {
		t.Error("slabs are left")
	}
}

// laidOut is the state of a job whose ranks all have this layout.
func laidOut(layout []phalanx.TensorInfo) *elastic.State {
	return &elastic.State{Spec: &phalanx.JobSpec{GroupSize: 1}, State: layout}
}

// Cells that another trainer wrote on the page are void.
func TestReadTrainerIgnoresOtherTrainers(t *testing.T) {
	p := NewPaths(t.TempDir(), t.TempDir())
	l := begin(t, p, 0, incarnate("h", 0, 1))
	defer unmap(t, l)
	if got := l.readTrainer(); got != (elastic.Trainer{}) {
		t.Errorf("without a hello: %+v", got)
	}
	l.helloPID, l.helloStart = selfProcess()
	g := phalanx.Generation{Epoch: 1, Number: 1}
	write := func(start uint64) {
		l.page.WriteApplied(wire.Applied{Step: 3, Generation: g, Valid: true, TrainerStart: start})
		l.page.WriteGradient(wire.Gradient{Step: 4, Generation: g, TrainerStart: start})
		l.page.WriteVoteRequest(wire.VoteRequest{Step: 4, Generation: g, OK: true, TrainerStart: start})
	}
	write(l.helloStart + 1)
	if got := l.readTrainer(); got != (elastic.Trainer{Possession: elastic.Possession{Trainer: true}}) {
		t.Errorf("another trainer's words count: %+v", got)
	}
	write(l.helloStart)
	got := l.readTrainer()
	if !got.Holds || got.Label.Step != 3 || got.Gradient.Step != 4 || got.Request.Step != 4 || !got.Request.OK {
		t.Errorf("its own words do not count: %+v", got)
	}
	l.page.WriteHealing(wire.Healing{On: true, TrainerStart: l.helloStart})
	if got := l.readTrainer(); got.Holds || got.Label != (phalanx.Label{}) {
		t.Errorf("a state is held in the middle of a heal: %+v", got)
	}
	l.died = &phalanx.Evidence{}
	if got := l.readTrainer(); got != (elastic.Trainer{}) {
		t.Errorf("after its death: %+v", got)
	}
}

// A daemon does not take over the page of a life that ended in order, nor one of the lives before: an operator starts it to
// have the member back.
func TestAdoptLeavesWhatHasLeft(t *testing.T) {
	p := NewPaths(t.TempDir(), t.TempDir())
	unmap(t, begin(t, p, 0, incarnate("h", 0, 1)))
	l := begin(t, p, 0, incarnate("h", 0, 2))
	s := elastic.NewState()
	s.Members = []elastic.Member{{Incarnate: l.who, State: elastic.Active}}
	d := &Daemon{cfg: Config{Host: "h"}, paths: p, state: s}
	d.leavePage(l)
	unmap(t, l)
	l, err := adoptLife(p, 0, "h/0", 0)
	if err != nil || l == nil || l.who.Incarnation != 2 {
		t.Fatalf("a life that the log counts on is not taken over: %+v, %v", l, err)
	}
	s.Members[0].State, s.Members[0].Drained = elastic.Gone, true
	d.leavePage(l)
	unmap(t, l)
	if l, err := adoptLife(p, 0, "h/0", 0); l != nil || err != nil {
		t.Errorf("adopted %+v, %v", l, err)
	}
	if lives := p.Lives(0); len(lives) != 2 {
		t.Errorf("lives %v are left: their slabs may be needed", lives)
	}
}

// A page that was damaged while everything was dead is no page: as after a reboot, what that life has promised is nobody's to say,
// and the next life has a later number. No life of before is taken over in its place.
func TestADamagedPageIsNone(t *testing.T) {
	for what, damage := range map[string]func(name string) error{
		"truncated to nothing": func(name string) error { return os.Truncate(name, 0) },
		"truncated":            func(name string) error { return os.Truncate(name, 4096) },
		"zeroed":               func(name string) error { return os.WriteFile(name, make([]byte, wire.PageBytes), 0o600) },
		"flipped": func(name string) error {
			b, err := os.ReadFile(name)
			if err == nil {
				b[0] ^= 1
				err = os.WriteFile(name, b, 0o600)
			}
			return err
		},
	} {
		t.Run(what, func(t *testing.T) {
			d := lone(t)
			d.paths = NewPaths(t.TempDir(), t.TempDir())
			d.replica = newReplica()
			if err := os.MkdirAll(d.paths.Member(0), 0o700); err != nil {
				t.Fatal(err)
			}
			for _, n := range []phalanx.Incarnation{1, 2} {
				unmap(t, begin(t, d.paths, 0, incarnate("h", 0, n)))
			}
			if err := damage(d.paths.Shared(0, 2, "page")); err != nil {
				t.Fatal(err)
			}
			orphan := exec.Command("sleep", "60")
			orphan.Env = []string{"PHALANX_SOCKET=" + d.paths.Socket(0)}
			orphan.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
			if err := orphan.Start(); err != nil {
				t.Fatal(err)
			}
			defer func() { _ = orphan.Process.Kill() }()
			d.life = nil
			if err := d.adopt(); err != nil || d.life == nil || d.life.who.Incarnation != 3 || d.life.promises() != (elastic.Page{}) {
				t.Fatalf("life %+v, %v", d.life, err)
			}
			defer unmap(t, d.life)
			if err := orphan.Wait(); err == nil {
				t.Error("the trainer of the damaged page goes on")
			}
		})
	}
}

// A damaged segment ends the trainer, and the promises on the page stay.
func TestADamagedSegmentKeepsThePromises(t *testing.T) {
	d := lone(t)
	d.paths = NewPaths(t.TempDir(), t.TempDir())
	d.replica = newReplica()
	who := incarnate("h", 0, 1)
	l := begin(t, d.paths, 0, who)
	if err := l.outfit(d.paths, 0, hello()); err != nil {
		t.Fatal(err)
	}
	l.helloPID, l.helloStart = 1<<30, 7 // it has ended
	l.identify(kernel{}, 0, false)
	g := phalanx.Generation{Number: 1}
	l.page.WriteSealed(wire.Sealed{Generation: g})
	unmap(t, l)
	if err := os.Truncate(d.paths.Shared(0, 1, "seg"), 0); err != nil {
		t.Fatal(err)
	}
	for range 2 { // and again by the next daemon
		d.life = nil
		if err := d.adopt(); err != nil {
			t.Fatal(err)
		}
		if d.life.who != who || d.life.machine.Sealed() != g || d.life.died == nil || d.life.segment != nil {
			t.Errorf("took over %s, sealed %s, died %v", d.life.who, d.life.machine.Sealed(), d.life.died)
		}
		unmap(t, d.life)
	}
}

// Tensors that a warm start lacks stay as the trainer made them. One that has trained, or was given something by others, does not have
// them any more.
func TestAWarmStartWithoutAllTensorsIsForFreshTrainers(t *testing.T) {
	p := NewPaths(t.TempDir(), t.TempDir())
	l := begin(t, p, 0, incarnate("h", 0, 1))
	if err := l.outfit(p, 0, hello()); err != nil {
		t.Fatal(err)
	}
	l.identify(kernel{}, 0, false)
	if !l.asMade() {
		t.Error("a trainer that has just started is not as it was made")
	}
	l.page.WriteApplied(wire.Applied{Step: 5, TrainerStart: l.helloStart}) // not valid: a heal has begun
	if l.asMade() {
		t.Error("a trainer at step 5 is as it was made")
	}
	l.page.WriteApplied(wire.Applied{TrainerStart: l.helloStart})
	l.page.WriteHealing(wire.Healing{On: true, Generation: phalanx.Generation{Epoch: 1, Number: 2}, TrainerStart: l.helloStart})
	unmap(t, l)
	l, err := adoptLife(p, 0, "h/0", 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unmap(t, l)
	if l.asMade() {
		t.Error("a trainer that the daemon before this one has healed is as it was made")
	}

	file := filepath.Join(t.TempDir(), "model.safetensors")
	header := `{"w":{"dtype":"F32","shape":[8,4],"data_offsets":[0,128]}}`
	data := append(binary.LittleEndian.AppendUint64(nil, uint64(len(header))), header...)
	if err := os.WriteFile(file, append(data, make([]byte, 128)...), 0o600); err != nil {
		t.Fatal(err)
	}
	w := &elastic.WarmStart{Place: file, Partial: true}
	v, items, err := OpenWarmStart(t.Context(), w)
	if err != nil {
		t.Fatal(err)
	}
	l.layout = layout()
	h := &healing{d: &Daemon{log: slog.New(slog.DiscardHandler)}, life: l, do: elastic.Heal{Label: phalanx.Label{Digest: warmDigest(w, v, items)}}}
	if _, err := h.fromWarmStart(t.Context(), phalanx.World{}, w); err == nil || !strings.Contains(err.Error(), "as the trainer made them") {
		t.Errorf("a trainer that is not as it was made: %v", err)
	}
	h.made = true
	ctx, cancel := context.WithCancel(t.Context())
	cancel() // nobody takes the bytes
	if _, err := h.fromWarmStart(ctx, phalanx.World{}, w); !errors.Is(err, context.Canceled) {
		t.Errorf("a trainer that is as it was made: %v", err)
	}
}
