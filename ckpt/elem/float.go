// SPDX-License-Identifier: Apache-2.0

package elem

import "math"

// format is a floating-point format of at most 16 bits with a sign, exponent and mantissa. What comes after the largest finite
// number differs.
type format struct {
	mantissa  uint   // bits
	least     int    // the exponent of the smallest normal number: 1 - bias
	signBit   uint64 // of the pattern
	maxFinite uint64 // the pattern of the largest number
	infinity  uint64 // its pattern, 0 when there is none
	nan       uint64
	noZero    bool // the pattern of -0 is NaN
}

var (
	f16       = format{mantissa: 10, least: -14, signBit: 1 << 15, maxFinite: 0x7bff, infinity: 0x7c00, nan: 0x7e00}
	bf16      = format{mantissa: 7, least: -126, signBit: 1 << 15, maxFinite: 0x7f7f, infinity: 0x7f80, nan: 0x7fc0}
	e4m3fn    = format{mantissa: 3, least: -6, signBit: 1 << 7, maxFinite: 0x7e, nan: 0x7f}
	e5m2      = format{mantissa: 2, least: -14, signBit: 1 << 7, maxFinite: 0x7b, infinity: 0x7c, nan: 0x7f}
	e4m3fnuz  = format{mantissa: 3, least: -7, signBit: 1 << 7, maxFinite: 0x7f, nan: 0x80, noZero: true}
	e5m2fnuz  = format{mantissa: 2, least: -15, signBit: 1 << 7, maxFinite: 0x7f, nan: 0x80, noZero: true}
	formatsOf = map[string]*format{
		"f16": &f16, "bf16": &bf16, "f8_e4m3fn": &e4m3fn, "f8_e5m2": &e5m2, "f8_e4m3fnuz": &e4m3fnuz, "f8_e5m2fnuz": &e5m2fnuz,
	}
)

// encode rounds a number to the nearest pattern, ties to even. lost is true for a finite number beyond the largest one.
func (f *format) encode(x float64) (pattern uint64, lost bool) {
	const mantissa64, bias64 = 52, 1023
	u := math.Float64bits(x)
	a, sign := u&^(1<<63), uint64(0)
	if u != a {
		sign = f.signBit
	}
	switch {
	case a > 0x7ff<<mantissa64:
		return f.nan, false
	case a == 0x7ff<<mantissa64:
		return f.beyond(sign), false
	}
	exponent, m := int(a>>mantissa64)-bias64, a&(1<<mantissa64-1)|1<<mantissa64 // numbers below 2^-1022 become 0 in any case
	shift := mantissa64 - f.mantissa
	if exponent < f.least {
		shift += uint(f.least - exponent)
	}
	if shift > mantissa64+1 || a == 0 { // less than half of the smallest pattern
		return f.zero(sign), false
	}
	q, rest, half := m>>shift, m&(1<<shift-1), uint64(1)<<(shift-1)
	if rest > half || rest == half && q&1 == 1 {
		q++ // may carry into the exponent, which is what it should do
	}
	if exponent >= f.least {
		q += uint64(exponent-f.least) << f.mantissa // q has the leading 1, which makes the exponent one more
	}
	switch {
	case q > f.maxFinite:
		return f.beyond(sign), true
	case q == 0:
		return f.zero(sign), false
	}
	return q | sign, false
}

func (f *format) beyond(sign uint64) uint64 {
	if f.infinity == 0 {
		if f.noZero {
			return f.nan
		}
		return f.nan | sign
	}
	return f.infinity | sign
}

func (f *format) zero(sign uint64) uint64 {
	if f.noZero {
		return 0
	}
	return sign
}

// decode is exact.
func (f *format) decode(pattern uint64) float64 {
	a := pattern &^ f.signBit
	var x float64
	switch m := a & (1<<f.mantissa - 1); {
	case f.noZero && pattern == f.nan, !f.noZero && a > f.maxFinite && (f.infinity == 0 || a > f.infinity):
		return math.NaN()
	case f.infinity != 0 && a == f.infinity:
		x = math.Inf(1)
	case a>>f.mantissa == 0:
		x = math.Ldexp(float64(m), f.least-int(f.mantissa))
	default:
		x = math.Ldexp(float64(m|1<<f.mantissa), f.least-int(f.mantissa)+int(a>>f.mantissa)-1)
	}
	if pattern&f.signBit != 0 {
		return -x
	}
	return x
}

// e8m0 is the format of powers of two from 2^-127 to 2^127.
const (
	e8m0Bias = 127
	e8m0NaN  = 0xff
)

// encodeE8M0 rounds as PyTorch does. What has no power of two near it is lost: zero, and negative numbers.
func encodeE8M0(x float64) (pattern uint64, lost bool) {
	if math.IsNaN(x) || math.IsInf(x, 0) {
		return e8m0NaN, false
	}
	a := math.Abs(x)
	lost = x <= 0
	switch {
	case a <= 0x1p-127:
		return 0, lost
	case a < 0x1p-126: // where a float32 has no leading 1, all go up
		return 1, lost
	}
	fraction, exponent := math.Frexp(a) // fraction in [0.5, 1)
	pattern = uint64(exponent - 1 + e8m0Bias)
	if fraction >= 0.75 {
		pattern++
	}
	if pattern >= e8m0NaN {
		return e8m0NaN, true
	}
	return pattern, lost
}

func decodeE8M0(pattern uint64) float64 {
	if pattern == e8m0NaN {
		return math.NaN()
	}
	return math.Ldexp(1, int(pattern)-e8m0Bias)
}
