// SPDX-License-Identifier: Apache-2.0

package kernels

import (
	"math/bits"

	"phalanx"
)

// prime is the Mersenne prime 2^61 - 1.
const prime = 1<<61 - 1

// pointOf is r, where the polynomials of a seed are evaluated: 1 ≤ r < prime.
func pointOf(seed uint64) uint64 { return 1 + mix(seed+7)%(prime-1) }

// addMod returns x + y mod prime, for x, y < prime.
func addMod(x, y uint64) uint64 {
	s := x + y
	if s >= prime {
		s -= prime
	}
	return s
}

// mulMod returns x · y mod prime, for x, y < prime: 2^61 is 1, so the bits above the 61st are added to those below.
func mulMod(x, y uint64) uint64 {
	hi, lo := bits.Mul64(x, y)
	return addMod(lo&prime, (hi<<3|lo>>61)%prime)
}

// powMod returns x^n mod prime.
func powMod(x, n uint64) uint64 {
	y := uint64(1)
	for ; n > 0; n >>= 1 {
		if n&1 == 1 {
			y = mulMod(y, x)
		}
		x = mulMod(x, x)
	}
	return y
}

// polynomial is a root under construction: the sum so far and the power of r that comes next. The zero value is not
// ready; see newPolynomial.
type polynomial struct {
	sum    phalanx.Digest
	r      uint64
	power  uint64
	leaves int64
}

func newPolynomial(r uint64) polynomial { return polynomial{r: r, power: 1} }

// add appends one leaf digest.
func (p *polynomial) add(leaf [2]uint64) {
	next := mulMod(p.power, p.r)
	for q, l := range leaf {
		p.sum[q] = addMod(p.sum[q], addMod(mulMod(p.power, l>>32), mulMod(next, l&(1<<32-1))))
	}
	p.power = mulMod(next, p.r)
	p.leaves++
}

// Part is the root of a run of leaves: of a tensor with its header, or of any leaf range whose powers start at r^0.
type Part struct {
	Root   phalanx.Digest
	Leaves int64 // how many leaves the root covers, header leaves included
}

// Combine returns the root of the parts one after the other. For the roots of tensors in name order it is [Digest].
func Combine(seed uint64, parts []Part) phalanx.Digest {
	r := pointOf(seed)
	var sum phalanx.Digest
	shift := uint64(1) // r^(2·leaves before the part)
	for _, part := range parts {
		for q := range sum {
			// A root from outside may be no residue; reducing it keeps the arithmetic defined.
			sum[q] = addMod(sum[q], mulMod(shift, part.Root[q]%prime))
		}
		shift = mulMod(shift, powMod(r, 2*uint64(part.Leaves)))
	}
	return sum
}
