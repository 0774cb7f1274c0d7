// SPDX-License-Identifier: Apache-2.0

package kernels

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/big"
	"strings"

	"phalanx"
)

// The reference is the text of doc.go, word by word, without any thought for speed.

var referencePrime = new(big.Int).Sub(new(big.Int).Lsh(big.NewInt(1), 61), big.NewInt(1))

// referenceKeys holds K of the first key set, then of the second.
var referenceKeys = func() (k [128]uint32) {
	for c := range uint64(128) {
		k[c] = uint32(mix(c+1)) | 1
	}
	return k
}()

func referenceLeaves(seed uint64, data []byte) (leaves [][2]uint64) {
	for len(data) > 0 {
		var leaf [65536]byte
		n := copy(leaf[:], data)
		data = data[n:]
		var l [2]uint64
		for q := range uint64(2) {
			for t := range uint64(256) {
				var s uint64
				for j := range uint64(16) {
					for i := range uint64(4) {
						w := binary.LittleEndian.Uint32(leaf[4*(j*1024+t*4+i):])
						s += uint64(referenceKeys[64*q+4*j+i]) * uint64(w)
					}
				}
				l[q] += (mix(seed^mix(256+t+256*q)) | 1) * s
			}
		}
		leaves = append(leaves, l)
	}
	return leaves
}

func referenceTensorLeaves(seed uint64, t Tensor) [][2]uint64 {
	dims := strings.ReplaceAll(strings.Trim(fmt.Sprint(t.Shape), "[]"), " ", ",")
	head := t.Name + "\x00" + t.DType + "\x00" + dims + "\x00"
	return append(referenceLeaves(seed, []byte(head)), referenceLeaves(seed, t.Data)...)
}

func referenceRoot(seed uint64, leaves [][2]uint64) (d phalanx.Digest) {
	r := new(big.Int).SetUint64(mix(seed + 7))
	r.Mod(r, new(big.Int).Sub(referencePrime, big.NewInt(1)))
	r.Add(r, big.NewInt(1))
	for q := range d {
		sum, power := new(big.Int), big.NewInt(1)
		for _, l := range leaves {
			for _, c := range []uint64{l[q] >> 32, l[q] & 0xffffffff} {
				term := new(big.Int).SetUint64(c)
				sum.Add(sum, term.Mul(term, power))
				power.Mul(power, r)
				power.Mod(power, referencePrime)
			}
		}
		d[q] = sum.Mod(sum, referencePrime).Uint64()
	}
	return d
}

// referenceStats takes tensors that are in name order.
func referenceStats(tensors []Tensor) (s Stats) {
	for _, t := range tensors {
		size := map[string]int{"float32": 4, "float64": 8}[t.DType]
		if size == 0 {
			continue
		}
		for data := t.Data; len(data) > 0; {
			leaf := data[:min(len(data), 65536)]
			data = data[len(leaf):]
			var sums [16]float64
			for e := range len(leaf) / size {
				var x float64
				if size == 4 {
					x = float64(math.Float32frombits(binary.LittleEndian.Uint32(leaf[4*e:])))
				} else {
					x = math.Float64frombits(binary.LittleEndian.Uint64(leaf[8*e:]))
				}
				square := x * x
				sums[e%16] = sums[e%16] + square
				if math.IsNaN(x) || math.IsInf(x, 0) {
					s.NonFinite++
				}
				s.AbsMax = max(s.AbsMax, math.Abs(x)) // unlike math.Max, NaN wins over +Inf
			}
			a := func(k int) float64 { return sums[k] + sums[k+8] }
			b := func(k int) float64 { return a(k) + a(k+4) }
			c := func(k int) float64 { return b(k) + b(k+2) }
			s.SumSquares += c(0) + c(1)
		}
	}
	return s
}
