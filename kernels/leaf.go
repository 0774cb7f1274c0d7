// SPDX-License-Identifier: Apache-2.0

package kernels

import "encoding/binary"

// leafDigest returns L for up to LeafBytes bytes; what is missing counts as 0.
func leafDigest(p []byte, k *laneKeys) [2]uint64 {
	if best() {
		return leafBest(p, k)
	}
	return leafGeneric(p, 0, k)
}

// leafGeneric returns the contribution to L of p, whose first byte is the first of the given row. It multiplies by A
// in each row rather than once for each lane: one more product for four words, and no array of sums.
func leafGeneric(p []byte, row int, k *laneKeys) (l [2]uint64) {
	for ; len(p) > 0; row++ {
		n := min(len(p), rowBytes)
		part := rowGeneric(p[:n], row, k)
		l[0] += part[0]
		l[1] += part[1]
		p = p[n:]
	}
	return l
}

// rowGeneric is leafGeneric for at most one row.
func rowGeneric(p []byte, row int, k *laneKeys) [2]uint64 {
	x := (*[4]uint64)(wordKeys[0][4*row:])
	y := (*[4]uint64)(wordKeys[1][4*row:])
	x0, x1, x2, x3 := x[0], x[1], x[2], x[3]
	y0, y1, y2, y3 := y[0], y[1], y[2], y[3]
	var l, m uint64
	lane := 0
	for ; len(p) > 0; lane++ {
		if len(p) < laneBytes {
			var padded [laneBytes]byte
			copy(padded[:], p)
			p = padded[:]
		}
		u, v := binary.LittleEndian.Uint64(p), binary.LittleEndian.Uint64(p[8:])
		w0, w1, w2, w3 := u&(1<<32-1), u>>32, v&(1<<32-1), v>>32
		t := lane & (laneCount - 1) // never wraps; spares the bounds checks
		l += k.a[0][t] * (x0*w0 + x1*w1 + x2*w2 + x3*w3)
		m += k.a[1][t] * (y0*w0 + y1*w1 + y2*w2 + y3*w3)
		p = p[laneBytes:]
	}
	return [2]uint64{l, m}
}
