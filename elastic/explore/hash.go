// SPDX-License-Identifier: Apache-2.0

package explore

import (
	"encoding/binary"
	"math/bits"
)

// hash is 128 bits of a key. Among a thousand million states two keys share one with a chance of one in 10²⁰.
type hash [2]uint64

const (
	mix0 = 0xa0761d6478bd642f
	mix1 = 0xe7037ed1a0b428db
	mix2 = 0x8ebc6af09c88c6e3
	mix3 = 0x589965cc75374cc3
)

// fold multiplies to 128 bits and adds the halves.
func fold(a, b uint64) uint64 {
	hi, lo := bits.Mul64(a, b)
	return hi ^ lo
}

// sum hashes a key: two lanes that are seeded and mixed differently.
func sum(b []byte) hash {
	x, y := uint64(mix0)^uint64(len(b)), uint64(mix1)+uint64(len(b))
	for len(b) >= 16 {
		p, q := binary.LittleEndian.Uint64(b), binary.LittleEndian.Uint64(b[8:])
		x = fold(x^p^mix2, q^mix3)
		y = fold(y^q^mix0, bits.RotateLeft64(p, 29)^mix2) + p
		b = b[16:]
	}
	var tail [16]byte
	copy(tail[:], b)
	p, q := binary.LittleEndian.Uint64(tail[:]), binary.LittleEndian.Uint64(tail[8:])
	x = fold(x^p^mix3, q^mix1)
	y = fold(y^q^mix2, bits.RotateLeft64(p, 31)^mix1) + p
	return hash{fold(x^mix1, y^mix0), fold(y^mix3, bits.RotateLeft64(x, 17)^mix2)}
}

func (h hash) less(o hash) bool { return h[0] < o[0] || h[0] == o[0] && h[1] < o[1] }

func (h hash) append(dst []byte) []byte {
	return binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(dst, h[0]), h[1])
}
