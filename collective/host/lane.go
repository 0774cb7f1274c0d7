// SPDX-License-Identifier: Apache-2.0

package host

import (
	"slices"

	"phalanx"
)

// Behind a board lie the words of the courier (see courier.go) and the lanes: each is for one group that a trainer has made what the
// first part of the board is for a group of the step, without a mailbox. A member takes any free lane; the others find it by the
// generation and the id that stand there.
const (
	// MaxGroups is how many groups one member can have at a time.
	MaxGroups = 64

	laneHead  = 2048
	laneRound = 32 << 10
	laneBytes = laneHead + roundSlots*laneRound
	laneWords = laneHead / 8
)

// GroupBytes is how much longer than BoardBytes the board of a member is that can have so many groups.
func GroupBytes(lanes int) int64 {
	if lanes <= 0 {
		return 0
	}
	return courierBytes + int64(lanes)*laneBytes
}

// Lanes is how many groups a member with this board can have.
func Lanes(board []byte) int { return lanes(board) }

// lanes is how many a board has.
func lanes(b []byte) int {
	return min(max(0, len(b)-BoardBytes-courierBytes)/laneBytes, MaxGroups)
}

func laneOf(b []byte, i int) board {
	at := b[BoardBytes+courierBytes+i*laneBytes:][:laneBytes]
	return board{words: u64s(at[:laneHead]), round: at[laneHead:], room: laneRound}
}

// claim makes a lane that of a group.
func (b board) claim(gen phalanx.Generation, id uint64, ranks []phalanx.Rank) {
	b.store(wordOf, 0)
	b.clear()
	for i := range laneWords {
		b.store(i, 0)
	}
	b.store(wordGroup, id)
	if len(ranks) <= maxListed && int(slices.Max(ranks)) < 1<<16 {
		b.store(wordRanks, uint64(len(ranks)))
		for i, r := range ranks {
			at := wordRanks + 1 + i/4
			b.store(at, b.load(at)|uint64(r)<<(i%4*16))
		}
	}
	b.store(wordOf, stampOf(gen, 0)|1)
}

// maxListed is how many ranks can stand on a lane.
const maxListed = 4 * (laneWords - wordRanks - 1)

// ranks are the members of the lane's group, none when they do not stand there.
func (b board) ranks() []phalanx.Rank {
	out := make([]phalanx.Rank, min(b.load(wordRanks), maxListed))
	for i := range out {
		out[i] = phalanx.Rank(b.load(wordRanks+1+i/4) >> (i % 4 * 16) & 0xffff)
	}
	return out
}

// holds reports whether a lane is that of a group.
func (b board) holds(gen phalanx.Generation, id uint64) bool {
	of := stampOf(gen, 0) | 1
	return b.load(wordOf) == of && b.load(wordGroup) == id && b.load(wordOf) == of
}

// find looks for the lane of a member that has not been found yet. A member of a group of the step is always found.
func (l *local) find(gen phalanx.Generation, id uint64) {
	if l.board.words != nil {
		return
	}
	for i := range lanes(l.memory) {
		if b := laneOf(l.memory, i); b.holds(gen, id) {
			l.board = b
			return
		}
	}
}
