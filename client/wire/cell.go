// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"fmt"
	"iter"
	"runtime"
	"strings"
	"sync/atomic"

	"phalanx"
)

func load(words []uint64, i int) uint64     { return atomic.LoadUint64(&words[i]) }
func store(words []uint64, i int, v uint64) { atomic.StoreUint64(&words[i], v) }

// cellStores yields the stores of one write in their order: a payload into the copy that is not current, then the word. A
// writer that is killed before the last store has changed nothing, and its successor goes on from the word it finds.
func cellStores(word uint64, payload []uint64) iter.Seq2[int, uint64] {
	return func(yield func(int, uint64) bool) {
		next := 1 - word&1
		at := 1 + int(next)*len(payload)
		for i, v := range payload {
			if !yield(at+i, v) {
				return
			}
		}
		yield(0, (word>>1+1)<<1|next)
	}
}

func writeCell(cell []uint64, payload []uint64) {
	for i, v := range cellStores(load(cell, 0), payload) {
		store(cell, i, v)
	}
}

// spinReads is after how many disturbed reads a reader lets the writer's goroutine run.
const spinReads = 8

// readCell copies the current payload and returns the count of writes, 0 for a cell that was never written. A read is only
// disturbed when two writes end while it copies.
func readCell(cell []uint64, payload []uint64) uint64 {
	for tries := 1; ; tries++ {
		word := load(cell, 0)
		if word == 0 {
			return 0
		}
		at := 1 + int(word&1)*len(payload)
		for i := range payload {
			payload[i] = load(cell, at+i)
		}
		if load(cell, 0) == word {
			return word >> 1
		}
		if tries%spinReads == 0 {
			runtime.Gosched()
		}
	}
}

// index checks the place of one of several equal cells: a wrong one is a mistake of the caller.
func index(i, count int) int {
	if i < 0 || i >= count {
		panic(fmt.Sprintf("wire: place %d of %d", i, count))
	}
	return i
}

// encodeMember packs an id of at most 64 bytes, first byte lowest, padded with zeros.
func encodeMember(w []uint64, id phalanx.MemberID) {
	clear(w)
	for i := 0; i < len(id) && i < phalanx.MaxMemberIDBytes; i++ {
		w[i/8] |= uint64(id[i]) << (8 * (i % 8))
	}
}

func decodeMember(w []uint64) phalanx.MemberID {
	var b strings.Builder
	for i := range phalanx.MaxMemberIDBytes {
		c := byte(w[i/8] >> (8 * (i % 8)))
		if c == 0 {
			break
		}
		b.WriteByte(c)
	}
	return phalanx.MemberID(b.String())
}

// Answer packs the answer to a numbered request into a plain word: sequence << 8 | status.
func Answer(sequence uint64, status Status) uint64 { return sequence<<8 | uint64(status)&0xff }

// ParseAnswer unpacks what Answer packed.
func ParseAnswer(word uint64) (sequence uint64, status Status) { return word >> 8, Status(word & 0xff) }
