// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"bytes"
	"fmt"
	"reflect"
	"strconv"
	"testing"

	"phalanx"
)

// A replay is a sequence of writes to an empty page and the words that differ from zero afterwards. Clients in other
// languages run the same file: write the payloads in order, then compare the whole page.
type replay struct {
	Name        string        `json:"name"`
	DaemonBell  int           `json:"daemon_bell"`
	TrainerBell int           `json:"trainer_bell"`
	Writes      []replayWrite `json:"writes"`
	Words       []replayWord  `json:"words"` // in ascending order, all others are zero
}

// replayWrite writes a cell (payload), a plain word (payload of one) or posts a descriptor (T_RING).
type replayWrite struct {
	Name    string   `json:"name"`
	Place   int      `json:"place"` // which of several
	Payload []string `json:"payload"`
}

type replayWord struct {
	Offset int    `json:"offset"` // bytes
	Value  string `json:"value"`  // hexadecimal: JSON numbers lose bits
}

func TestReplayVectors(t *testing.T) {
	const file = "testdata/replay.json"
	if *update {
		all := makeReplays()
		for i := range all {
			all[i].Words = wordsAfter(t, all[i])
		}
		writeJSON(t, file, all)
	}
	var all []replay
	readJSON(t, file, &all)
	if len(all) < 4 {
		t.Fatalf("%d replays", len(all))
	}
	for _, r := range all {
		if got := wordsAfter(t, r); !reflect.DeepEqual(got, r.Words) {
			t.Errorf("replay %q: got %v, want %v", r.Name, got, r.Words)
		}
	}
}

// wordsAfter plays a replay with what the typed methods are made of.
func wordsAfter(t *testing.T, r replay) []replayWord {
	t.Helper()
	p := NewPage(r.DaemonBell, r.TrainerBell)
	for _, w := range r.Writes {
		place := placeOf(t, w.Name)
		payload := make([]uint64, len(w.Payload))
		for i, s := range w.Payload {
			v, err := strconv.ParseUint(s, 0, 64)
			if err != nil {
				t.Fatal(err)
			}
			payload[i] = v
		}
		if len(payload) != place.Words {
			t.Fatalf("%s: %d words of payload, want %d", w.Name, len(payload), place.Words)
		}
		at := (place.Offset + w.Place*place.Stride) / 8
		switch {
		case place.Cell:
			writeCell(p.words[at:], payload)
		case w.Name == "T_RING":
			var d Descriptor
			d.Decode(payload)
			if s := p.Post(d); RingPlace(s) != w.Place {
				t.Fatalf("descriptor lies in place %d, want %d", RingPlace(s), w.Place)
			}
		default:
			store(p.words, at, payload[0])
		}
	}
	var out []replayWord
	for i, v := range p.words {
		if v != 0 {
			out = append(out, replayWord{8 * i, fmt.Sprintf("%#x", v)})
		}
	}
	return out
}

func placeOf(t *testing.T, name string) Place {
	t.Helper()
	for _, p := range Places {
		if p.Name == name {
			return p
		}
	}
	t.Fatalf("no place %q", name)
	return Place{}
}

func makeReplays() []replay {
	encode := func(words int, v interface{ Encode([]uint64) }) []string {
		w := make([]uint64, words)
		v.Encode(w)
		return hexes(w...)
	}
	g := phalanx.Generation{Epoch: 1, Number: 7}
	d := phalanx.Digest{0x0123456789abcdef, 0xfedcba9876543210}
	step := []replayWrite{
		{"T_BEGIN", 0, encode(BeginWords, Begin{Waiting: true, Step: 12, TrainerStart: 99})},
		{"D_SEAT", 0, encode(SeatWords, Seat{Generation: g, Branch: 1, Action: ActionRun, Rank: 3, World: 4, GroupSize: 2, Coordinate: 1, SlotFirst: 4, SlotEnd: 8, SlotCount: 8, LocalRank: 1, LocalWorld: 2, ResumeStep: 11, ResumeGeneration: phalanx.Generation{Epoch: 1, Number: 6}, ResumeDigest: d, LastStep: 20})},
		{"T_GRADIENT", 0, encode(GradientWords, Gradient{Generation: g, Step: 12, Digest: d, Coordinate: 1, TrainerStart: 99})},
		{"T_VOTE", 0, encode(VoteRequestWords, VoteRequest{Generation: g, Step: 12, OK: true, Digest: d, TrainerStart: 99, ComputeNS: 5, ReduceNS: 6, DigestNS: 7})},
		{"D_VOTE", 0, encode(VoteWords, Vote{Generation: g, Step: 12, OK: true, Digest: d, Coordinate: 1})},
		{"D_COMMIT", 0, encode(CommitWords, Commit{Generation: g, Step: 12})},
		{"T_APPLYING", 0, encode(ApplyingWords, Applying{Step: 12, Generation: g, TrainerStart: 99})},
		{"T_APPLIED", 0, encode(AppliedWords, Applied{Step: 12, Generation: g, Digest: d, Coordinate: 1, TrainerStart: 99, Valid: true})},
	}
	commit := func(n uint64) replayWrite {
		return replayWrite{"D_COMMIT", 0, encode(CommitWords, Commit{Generation: g, Step: phalanx.Step(n)})}
	}
	ring := []replayWrite{
		{"T_RING", 0, encode(DescriptorWords, Descriptor{Generation: g, Op: OpAllReduce, DType: DTypeF32, Root: phalanx.NoRank, Count: 1000, InStride: 4032, InNodes: 2, OutOffset: 1 << 33, Scale: ScaleMean})},
		{"T_RING", 1, encode(DescriptorWords, Descriptor{Generation: g, Op: OpBarrier})},
		{"D_COMPLETE", 0, hexes(Answer(1, StatusOK))},
	}
	groups := []replayWrite{
		{"T_RING", 0, encode(DescriptorWords, Descriptor{Generation: g, Op: OpAllToAll, DType: DTypeI32, Group: FirstGroup + 5, Root: phalanx.NoRank, Count: 6, InOffset: 64, OutOffset: 128, Flags: uint64(CollFlagCounts), CountsOffset: 256})},
		{"T_RING", 1, encode(DescriptorWords, Descriptor{Generation: g, Op: OpReduce, DType: DTypeBF16, Group: LastGroup, Root: 2, Count: 6, Reduction: ReductionMax})},
		{"T_RING", 2, encode(DescriptorWords, Descriptor{Generation: g, Op: OpSend, DType: DTypeU8, Group: FirstGroup, Count: 6, Peer: 3, Tag: 9})},
		{"T_ABORT", 7, encode(AbortWords, Abort{Generation: g, Sequence: 1, Group: FirstGroup})},
		{"D_COMPLETE", 2, hexes(Answer(3, StatusRevoked))},
		{"D_ABORTED", 7, hexes(Answer(1, StatusOK))},
	}
	heal := []replayWrite{
		{"T_HEALING", 0, encode(HealingWords, Healing{On: true, Generation: g, TrainerStart: 99})},
		{"T_APPLIED", 0, encode(AppliedWords, Applied{Coordinate: AnyCoordinate, TrainerStart: 99})},
		{"D_FILL", 7, encode(FillWords, Fill{Generation: g, Sequence: 1, Tensor: 2, Offset: 64, Length: 128, SegmentOffset: 4096})},
		{"T_FILLED", 7, hexes(Answer(1, StatusOK))},
		{"D_HEALEND", 0, encode(HealEndWords, HealEnd{Generation: g, Sequence: 1, LabelStep: 11, LabelGeneration: g, LabelDigest: d, DigestsOffset: 64, DigestsCount: 3})},
		{"T_HEALRESULT", 0, encode(HealResultWords, HealResult{Generation: g, Sequence: 1, Why: WhyStateUnequal, Tensor: 2})},
		{"T_PREEMPT", 0, hexes(1)},
	}
	identity := []replayWrite{{"D_IDENTITY", 0, encode(IdentityWords, Identity{Member: "node-0.example/3", Incarnation: 2, Boot0: 1, Boot1: 2, DaemonPID: 10, DaemonStart: 11, TrainerPID: 12, TrainerStart: 13, Index: 3, SegmentBytes: 1 << 20, SlabBytes: 1 << 21})}}
	return []replay{
		{Name: "empty page", DaemonBell: 6, TrainerBell: 7},
		{Name: "identity with a member id", DaemonBell: 6, TrainerBell: 7, Writes: identity},
		{Name: "one cell written once, twice and three times", Writes: []replayWrite{commit(1), commit(2), commit(3)}, TrainerBell: 1},
		{Name: "a healthy step", TrainerBell: 1, Writes: step},
		{Name: "collectives", TrainerBell: 1, Writes: ring},
		{Name: "groups of ranks", TrainerBell: 1, Writes: groups},
		{Name: "a heal that fails", TrainerBell: 1, Writes: heal},
	}
}

func hexes(words ...uint64) []string {
	out := make([]string, len(words))
	for i, w := range words {
		out[i] = fmt.Sprintf("%#x", w)
	}
	return out
}

// slabReplay pins where tensors lie and the layout's hash.
type slabReplay struct {
	Tensors []phalanx.TensorInfo `json:"tensors"`
	Offsets []int64              `json:"offsets"`
	Total   int64                `json:"total"`
	Hash    string               `json:"hash"`
}

func TestSlabVectors(t *testing.T) {
	const file = "testdata/slab.json"
	if *update {
		in := []phalanx.TensorInfo{{Name: "embed.weight", DType: "f32", Shape: []int{257, 31}}, {Name: "step", DType: "i64", Shape: []int{}}, {Name: "none", DType: "u8", Shape: []int{0}}, {Name: "ünïcode", DType: "bf16", Shape: []int{3}}}
		var all []slabReplay
		for n := range len(in) + 1 {
			l, err := LayoutSlab(in[:n])
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, slabReplay{in[:n], l.Offsets, l.Total, fmt.Sprintf("%#x", l.Hash)})
		}
		writeJSON(t, file, all)
	}
	var all []slabReplay
	readJSON(t, file, &all)
	for _, r := range all {
		l, err := LayoutSlab(r.Tensors)
		if err != nil {
			t.Fatal(err)
		}
		if fmt.Sprint(l.Offsets) != fmt.Sprint(r.Offsets) || l.Total != r.Total || fmt.Sprintf("%#x", l.Hash) != r.Hash {
			t.Errorf("%v: %+v, want %+v", r.Tensors, l, r)
		}
	}
}

// FuzzPage feeds bytes of a damaged page to everything that reads one: errors and odd values are fine, panics are not.
func FuzzPage(f *testing.F) {
	f.Add(0, []byte{1})
	f.Add(Places[0].Offset, bytes.Repeat([]byte{0xff}, 320))
	f.Add(offsetDescriptor, bytes.Repeat([]byte{0x80}, 64))
	f.Fuzz(func(t *testing.T, at int, damage []byte) {
		p := NewPage(0, 1)
		if at < 0 || at > PageBytes {
			at = 0
		}
		for i, c := range damage {
			if at+i < PageBytes {
				p.words[(at+i)/8] ^= uint64(c) << (8 * ((at + i) % 8))
			}
		}
		if err := checkHeader(p.words); err == nil && (p.DaemonBell() >= BellLines || p.TrainerBell() < 0) {
			t.Fatalf("bells %d and %d were taken", p.DaemonBell(), p.TrainerBell())
		}
		v := reflect.ValueOf(p)
		for i := range v.NumMethod() {
			m := v.Type().Method(i)
			if len(m.Name) > 4 && m.Name[:4] == "Read" && m.Name != "ReadDescriptor" {
				var args []reflect.Value
				if m.Type.NumIn() == 2 {
					args = append(args, reflect.ValueOf(0))
				}
				got := v.Method(i).Call(args)[0].Interface()
				_ = fmt.Sprintf("%v", got) // String of unknown values
			}
		}
		for s := range uint64(3) {
			_ = p.ReadDescriptor(s + 1)
			_ = p.Completion(s + 1)
		}
	})
}
