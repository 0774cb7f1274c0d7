// SPDX-License-Identifier: Apache-2.0

// Package phalanx holds the words that every other package shares: members, generations, worlds, labels, evidence.
//
// They are values. The package imports only the standard library, starts nothing and keeps no state, so that everything
// else can import it. What the words mean is in docs/naming.md.
package phalanx

import (
	"cmp"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// ErrStaleGeneration is returned for every command, frame, request or object name that carries a generation which is not
// the current one. It is never retried as it is: read the log, then decide anew.
var ErrStaleGeneration = errors.New("stale generation")

// ErrRevoked is returned by a collective or a wait that was ended because its generation was sealed.
var ErrRevoked = errors.New("generation revoked")

// MemberID names a member for life: HOST/INDEX, where INDEX counts the daemons of one host from 0.
type MemberID string

// NewMemberID returns the member with the given index on a host.
func NewMemberID(host string, index int) MemberID {
	return MemberID(host + "/" + strconv.Itoa(index))
}

// Host returns the part before the last slash.
func (id MemberID) Host() string {
	host, _, _ := id.cut()
	return host
}

// Index returns the number after the last slash, or -1 when there is none.
func (id MemberID) Index() int {
	_, index, ok := id.cut()
	if !ok {
		return -1
	}
	return index
}

func (id MemberID) cut() (string, int, bool) {
	i := strings.LastIndexByte(string(id), '/')
	if i < 0 {
		return string(id), 0, false
	}
	index, err := strconv.Atoi(string(id[i+1:]))
	if err != nil || index < 0 || strconv.Itoa(index) != string(id[i+1:]) { // h/+1 and h/01 would be other names of h/1
		return string(id), 0, false
	}
	return string(id[:i]), index, true
}

// Valid reports whether the id has the form HOST/INDEX with a host that is safe in file and object names.
func (id MemberID) Valid() bool {
	host, _, ok := id.cut()
	if !ok || host == "" || len(id) > MaxMemberIDBytes {
		return false
	}
	for _, c := range host {
		if !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-' || c == '_' || c == '.') {
			return false
		}
	}
	return true
}

// FileName returns the id in a form that is one path element: HOST.INDEX.
func (id MemberID) FileName() string { return strings.ReplaceAll(string(id), "/", ".") }

// CompareMemberIDs orders members by host, then by index as a number.
func CompareMemberIDs(a, b MemberID) int {
	ah, ai, _ := a.cut()
	bh, bi, _ := b.cut()
	return cmp.Or(cmp.Compare(ah, bh), cmp.Compare(ai, bi), cmp.Compare(a, b))
}

// MaxMemberIDBytes bounds a MemberID: it has a fixed place in the control page.
const MaxMemberIDBytes = 64

// Incarnation counts the lives of a member, from 1. (MemberID, Incarnation) is never reused.
type Incarnation uint64

// Incarnate is one life of one member.
type Incarnate struct {
	Member      MemberID    `json:"member"`
	Incarnation Incarnation `json:"incarnation"`
}

func (i Incarnate) String() string { return fmt.Sprintf("%s.%d", i.Member, i.Incarnation) }

// Step counts optimizer updates. Step n is the n-th; 0 is the initial state.
type Step uint64

// Slot is a fixed share of the global batch: the unit that is dealt to ranks and the leaf of the reduction tree.
type Slot int

// Rank is a position within one generation. It is never an identity.
type Rank int

// NoRank is the rank of a member that is not in the world.
const NoRank Rank = -1

// Generation is the version of the world and the fencing token: an authority epoch and a number, compared in that order.
// It only grows, also across a lost quorum. The zero value is "before the first world".
type Generation struct {
	Epoch  uint32
	Number uint64
}

// Compare orders generations by epoch, then by number.
func (g Generation) Compare(h Generation) int {
	return cmp.Or(cmp.Compare(g.Epoch, h.Epoch), cmp.Compare(g.Number, h.Number))
}

// Less reports whether g is older than h.
func (g Generation) Less(h Generation) bool { return g.Compare(h) < 0 }

// IsZero reports whether g is before the first world.
func (g Generation) IsZero() bool { return g == Generation{} }

// Next is the generation after g in the same epoch.
func (g Generation) Next() Generation { return Generation{g.Epoch, g.Number + 1} }

// String prints NUMBER, or EPOCH.NUMBER once the authority has changed hands.
func (g Generation) String() string {
	if g.Epoch == 0 {
		return strconv.FormatUint(g.Number, 10)
	}
	return fmt.Sprintf("%d.%d", g.Epoch, g.Number)
}

// MarshalJSON gives the number alone, as scripts want it, and "EPOCH.NUMBER" once the authority has changed hands.
func (g Generation) MarshalJSON() ([]byte, error) {
	if g.Epoch == 0 {
		return strconv.AppendUint(nil, g.Number, 10), nil
	}
	return strconv.AppendQuote(nil, g.String()), nil
}

// UnmarshalJSON reads what MarshalJSON gives.
func (g *Generation) UnmarshalJSON(b []byte) error {
	text := string(b)
	if unquoted, err := strconv.Unquote(text); err == nil {
		text = unquoted
	}
	got, err := ParseGeneration(text)
	if err != nil {
		return err
	}
	*g = got
	return nil
}

// ParseGeneration reads what String prints.
func ParseGeneration(s string) (Generation, error) {
	epoch, number, ok := strings.Cut(s, ".")
	if !ok {
		epoch, number = "0", s
	}
	e, err := strconv.ParseUint(epoch, 10, 32)
	if err != nil {
		return Generation{}, fmt.Errorf("generation %q: %w", s, err)
	}
	n, err := strconv.ParseUint(number, 10, 64)
	if err != nil {
		return Generation{}, fmt.Errorf("generation %q: %w", s, err)
	}
	return Generation{uint32(e), n}, nil
}

// Digest is a D1 digest: two independent 64-bit roots. Its text form is 32 hex digits, first root first.
type Digest [2]uint64

// IsZero reports whether no digest was computed.
func (d Digest) IsZero() bool { return d == Digest{} }

func (d Digest) String() string { return fmt.Sprintf("%016x%016x", d[0], d[1]) }

// MarshalText makes digests hex strings in JSON.
func (d Digest) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText reads 32 hex digits.
func (d *Digest) UnmarshalText(text []byte) error {
	got, err := ParseDigest(string(text))
	if err != nil {
		return err
	}
	*d = got
	return nil
}

// ParseDigest reads what String prints.
func ParseDigest(s string) (Digest, error) {
	b, err := hex.DecodeString(s)
	if err != nil || len(b) != 16 {
		return Digest{}, fmt.Errorf("digest %q: want 32 hex digits", s)
	}
	var d Digest
	for i, c := range b {
		d[i/8] = d[i/8]<<8 | uint64(c)
	}
	return d, nil
}

// Label says which state a copy of the model is: the step, the generation and digest of the gradient that made it, and the
// shard coordinate. The initial state has step 0, generation zero, digest zero.
type Label struct {
	Step       Step       `json:"step"`
	Generation Generation `json:"generation"`
	Digest     Digest     `json:"digest"`
	Coordinate int        `json:"coordinate"`
}

func (l Label) String() string {
	return fmt.Sprintf("step %d made in %s (%.8s) coordinate %d", l.Step, l.Generation, l.Digest, l.Coordinate)
}

// SlotRange is a contiguous range of slots, First included, End excluded.
type SlotRange struct {
	First Slot `json:"first"`
	End   Slot `json:"end"`
}

// Len is the number of slots in the range.
func (r SlotRange) Len() int { return int(r.End - r.First) }

// Seat is one member's place in a world.
type Seat struct {
	Incarnate
	Rank       Rank      `json:"rank"`
	Group      int       `json:"group"`
	Coordinate int       `json:"coordinate"`
	Slots      SlotRange `json:"slots"`
}

// World is the ordered set of members of one generation, fixed by one log entry. Seats are in rank order;
// rank = group × GroupSize + coordinate. All ranks of a group have the same slots.
type World struct {
	Generation Generation `json:"generation"`
	GroupSize  int        `json:"group_size"`
	SlotCount  int        `json:"slot_count"`
	Seats      []Seat     `json:"seats"`
}

// Size is the number of ranks.
func (w *World) Size() int { return len(w.Seats) }

// Groups is the number of replica groups.
func (w *World) Groups() int {
	if w.GroupSize == 0 {
		return 0
	}
	return len(w.Seats) / w.GroupSize
}

// SeatOf returns the seat of a member, nil when it has none.
func (w *World) SeatOf(id MemberID) *Seat {
	for i := range w.Seats {
		if w.Seats[i].Member == id {
			return &w.Seats[i]
		}
	}
	return nil
}

// Has reports whether exactly this life of a member is in the world.
func (w *World) Has(i Incarnate) bool {
	s := w.SeatOf(i.Member)
	return s != nil && s.Incarnation == i.Incarnation
}

// Clone returns a deep copy.
func (w World) Clone() World {
	w.Seats = slices.Clone(w.Seats)
	return w
}

// Efficiency is the share of ideal speed that the present deal reaches: S/(N·⌈S/N⌉) for S slots on N groups.
func Efficiency(slots, groups int) float64 {
	if slots <= 0 || groups <= 0 {
		return 0
	}
	return float64(slots) / float64(groups*((slots+groups-1)/groups))
}
