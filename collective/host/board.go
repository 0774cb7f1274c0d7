// SPDX-License-Identifier: Apache-2.0

package host

import (
	"sync/atomic"

	"phalanx"
)

// BoardBytes is the size of a board: shared memory of one member, written by its daemon only and mapped read-only by the
// other daemons of the host. It must start at a multiple of 8 bytes. A fresh file (all zero) is a valid board. Behind it follows
// what groups of ranks need, see [GroupBytes].
const BoardBytes = boardHead + groups*(mailSlots*maxPayload+roundSlots*roundBytes)

// The words of a board, for each group. All are little-endian and accessed atomically.
const (
	boardHead  = 4096
	groupWords = boardHead / 8 / groups

	// wordPosted is the stamp of the operation that the member takes part in, 0 when there is none. The words up to
	// wordOut belong to it: they are written while it is 0, and a reader looks at it again after reading anything.
	wordPosted = 0
	wordSig    = 1
	wordIn     = 2
	wordStride = 3
	wordOut    = 4
	// wordSeq and wordSeqOdd are Op.Seq of the newest operations with an even and an odd number, by which a daemon that adopts
	// the board finds its place. There are two because a kill may come between this word and the one that says the number.
	wordSeq    = 5
	wordSeqOdd = 7
	// wordEntered is the stamp of the newest operation that the member has entered, 0 once it took one back. It says who is
	// there: wordPosted is 0 for a moment when a member that was let through a barrier posts what comes next, and who looks in
	// that moment is rung by nobody later.
	wordEntered = 6
	// wordReduced counts the chunks of the member's own shard that are final in its output: progress(stamp, chunks).
	wordReduced = 8
	// wordLeft is the stamp of the newest operation in which the member reads nobody's memory any more.
	wordLeft = 9
	// wordFailed is the stamp of the operation that the member gave up other than by a revoke.
	wordFailed = 10
	// wordSleeping is 1 while the member's worker sleeps or is about to: only then need it be rung.
	wordSleeping = 16
	// wordAcks counts, for each partner of the halving exchange, the messages taken from that partner's mailbox.
	wordAcks = 24
	maxAcks  = 40
	// wordMail holds for each mailbox slot mailWords words; see mail.go.
	wordMail  = wordAcks + maxAcks
	mailWords = 4
	// wordRound holds for each slot of inputs roundWords words; see round.go.
	wordRound  = wordMail + mailSlots*mailWords
	roundWords = 2
	// wordGroup and wordOf are for lanes alone: the id of the group, and the stamp of its generation, 0 while the other changes.
	wordGroup = 128
	wordOf    = 129
	// wordRanks is how many members the group has, 0 when they are too many to stand here, and behind it the ranks, four in a
	// word: a daemon that takes over reads them.
	wordRanks = 130
)

// board is the view of one group's part of a member's board.
type board struct {
	words []uint64 // nil: not found yet, which reads as 0
	mail  []byte   // mailSlots payloads
	round []byte   // roundSlots payloads
	room  int      // bytes of one of these
}

func boardOf(b []byte, group int) board {
	const mails = groups * mailSlots * maxPayload
	return board{
		words: u64s(b[:boardHead])[group*groupWords:][:groupWords],
		mail:  b[boardHead+group*mailSlots*maxPayload:][:mailSlots*maxPayload],
		round: b[boardHead+mails+group*roundSlots*roundBytes:][:roundSlots*roundBytes],
		room:  roundBytes,
	}
}

func (b board) load(i int) uint64 {
	if b.words == nil {
		return 0
	}
	return atomic.LoadUint64(&b.words[i])
}

func (b board) store(i int, v uint64) { atomic.StoreUint64(&b.words[i], v) }

// stampOf packs a generation and the number of an operation within it (from 1) in one word. Generations that meet on one
// host are neighbours, so 32 bits of their mixture tell them apart.
func stampOf(gen phalanx.Generation, seq uint32) uint64 {
	return uint64(uint32(gen.Number)^gen.Epoch*0x9e3779b1)<<32 | uint64(seq)
}

// reached reports whether a stamp is of the same generation as want and not older.
func reached(stamp, want uint64) bool {
	return stamp>>32 == want>>32 && uint32(stamp) >= uint32(want)
}

// progress packs a count with enough of a stamp that it is not taken for another operation's.
func progress(stamp uint64, count int) uint64 {
	return uint64(uint32(mix(stamp)))<<32 | uint64(uint32(count))
}

// counted unpacks what progress packed: 0 when it is of another operation.
func counted(word, stamp uint64) int {
	if word>>32 != uint64(uint32(mix(stamp))) {
		return 0
	}
	return int(uint32(word))
}

// clear takes the operation back: from now on whoever reads the member's memory for it will notice.
func (b board) clear() {
	b.store(wordEntered, 0)
	b.store(wordPosted, 0)
}

// reset makes the board that of a new generation, without operations.
func (b board) reset() {
	b.clear()
	for i := 1; i < groupWords; i++ {
		b.store(i, 0)
	}
}

// mark is where the daemon before this one was on the board of a generation.
type mark struct {
	seq uint32 // number of the newest operation posted in the generation, 0 for none
	op  uint64 // its Op.Seq
}

// adopted returns the mark of a generation on the board; seq is 0 when the board is of another one.
func (b board) adopted(gen phalanx.Generation) mark {
	of := stampOf(gen, 0)
	var m mark
	for _, i := range []int{wordPosted, wordEntered, wordLeft} {
		if stamp := b.load(i); stamp != 0 && reached(stamp, of) {
			m.seq = max(m.seq, uint32(stamp))
		}
	}
	if m.seq != 0 {
		m.op = b.load(seqWord(m.seq))
	}
	return m
}

// seqWord is where Op.Seq of an operation stands, by the operation's number.
func seqWord(number uint32) int {
	if number%2 == 0 {
		return wordSeq
	}
	return wordSeqOdd
}

// post publishes an operation. One that an earlier daemon of this member had posted already stays posted: others may be
// reading, and what it has reduced counts.
func (b board) post(stamp, sig uint64, op *Op) {
	if r, ok := b.read(stamp); ok && r == (record{sig, op.InOffset, op.InStride, op.OutOffset}) {
		b.store(wordEntered, stamp) // the last store of an entry that was cut off
		return
	}
	for _, w := range posting(stamp, sig, op) {
		b.store(w.word, w.value)
	}
}

type store struct {
	word  int
	value uint64
}

// posting is what post stores, in this order: a daemon may be killed between any two.
func posting(stamp, sig uint64, op *Op) [9]store {
	return [...]store{
		{wordPosted, 0},
		{seqWord(uint32(stamp)), op.Seq},
		{wordSig, sig},
		{wordIn, uint64(op.InOffset)},
		{wordStride, uint64(op.InStride)},
		{wordOut, uint64(op.OutOffset)},
		{wordReduced, progress(stamp, 0)},
		{wordPosted, stamp},
		{wordEntered, stamp},
	}
}

// hasEntered reports whether the member has entered the operation: this one or one behind it, also when it has given that up.
func (b board) hasEntered(stamp uint64) bool {
	if reached(b.load(wordEntered), stamp) {
		return true
	}
	failed := b.load(wordFailed)
	return failed != stamp && reached(failed, stamp)
}

// record is what a member posted.
type record struct {
	sig             uint64
	in, stride, out int64
}

// read returns what a member posted under the stamp; false when it moved meanwhile.
func (b board) read(stamp uint64) (record, bool) {
	if b.load(wordPosted) != stamp {
		return record{}, false
	}
	r := record{b.load(wordSig), int64(b.load(wordIn)), int64(b.load(wordStride)), int64(b.load(wordOut))}
	return r, b.load(wordPosted) == stamp
}
