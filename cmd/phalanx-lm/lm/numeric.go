// SPDX-License-Identifier: Apache-2.0

package lm

import "math"

// mix is SplitMix64's finaliser: a bijection of 64-bit words that leaves no visible pattern.
func mix(z uint64) uint64 {
	z ^= z >> 30
	z *= 0xbf58476d1ce4e5b9
	z ^= z >> 27
	z *= 0x94d049bb133111eb
	return z ^ z>>31
}

// stream is a random stream: SplitMix64 from a key. Equal keys give equal streams, whoever draws from them.
type stream struct{ state uint64 }

// newStream returns the stream of a purpose under a seed and two coordinates, say (step, slot).
func newStream(seed uint64, purpose string, a, b uint64) stream {
	key := mix(seed + 0x9e3779b97f4a7c15)
	for _, c := range []byte(purpose) {
		key = mix(key ^ uint64(c))
	}
	return stream{mix(mix(key^a) + b)}
}

func (s *stream) next() uint64 {
	s.state += 0x9e3779b97f4a7c15
	return mix(s.state)
}

// symmetric returns a number of the 2^24 that divide [-1, 1) evenly; each is exact in float32.
func (s *stream) symmetric() float32 {
	return float32(int64(s.next()>>40)-1<<23) / (1 << 23)
}

// ln2 in two parts: the high one has so few bits that its product with any exponent is exact.
const (
	ln2High = 6.93147180369123816490e-01
	ln2Low  = 1.90821492927058770002e-10
)

// exp returns e^x to about 1e-15 for x ≤ 0, and 0 below -700. The model needs no other arguments.
func exp(x float64) float64 {
	if !(x >= -700) {
		if x != x {
			return x
		}
		return 0
	}
	k := math.Floor(float64(x*math.Log2E) + 0.5)
	r := x - float64(k*ln2High) - float64(k*ln2Low) // |r| ≤ ln2/2
	// Taylor's series by Horner: r^13/13! is below 1e-15 there.
	p := 1.0
	for n := 13; n > 0; n-- {
		p = 1 + float64(float64(r*p)*reciprocal[n])
	}
	return float64(p * math.Float64frombits(uint64(int64(k)+1023)<<52))
}

var reciprocal = func() (r [14]float64) {
	for n := 1; n < len(r); n++ {
		r[n] = 1 / float64(n)
	}
	return r
}()

// log returns the natural logarithm of a positive, finite, normal x to about 1e-15.
func log(x float64) float64 {
	bits := math.Float64bits(x)
	k := int(bits>>52) - 1023
	f := math.Float64frombits(bits&(1<<52-1) | 1023<<52) // 1 ≤ f < 2
	if f > math.Sqrt2 {
		f /= 2
		k++
	}
	// log f = 2 artanh(t); |t| ≤ 0.172, so that t^23 is below 1e-17.
	t := (f - 1) / (f + 1)
	square := float64(t * t)
	p := 0.0
	for n := 21; n > 0; n -= 2 {
		p = float64(p*square) + 1/float64(n)
	}
	return float64(float64(k)*ln2High) + (float64(2*float64(t*p)) + float64(float64(k)*ln2Low))
}

// power returns x^n by squaring: products only, so the same bits everywhere.
func power(x float64, n uint64) float64 {
	y := 1.0
	for ; n > 0; n >>= 1 {
		if n&1 == 1 {
			y = float64(y * x)
		}
		x = float64(x * x)
	}
	return y
}

// dot returns the inner product of a and b. Eight sums run side by side to hide the latency of an addition; how they are
// joined is part of the result.
func dot(a, b []float32) float32 {
	var s0, s1, s2, s3, s4, s5, s6, s7 float32
	b = b[:len(a)]
	for len(a) >= 8 && len(b) >= 8 {
		s0 += float32(a[0] * b[0])
		s1 += float32(a[1] * b[1])
		s2 += float32(a[2] * b[2])
		s3 += float32(a[3] * b[3])
		s4 += float32(a[4] * b[4])
		s5 += float32(a[5] * b[5])
		s6 += float32(a[6] * b[6])
		s7 += float32(a[7] * b[7])
		a, b = a[8:], b[8:]
	}
	for i, x := range a {
		s0 += float32(x * b[i])
	}
	return ((s0 + s4) + (s2 + s6)) + ((s1 + s5) + (s3 + s7))
}

// axpy adds s·x to y.
func axpy(y []float32, s float32, x []float32) {
	y = y[:len(x)]
	for len(x) >= 4 && len(y) >= 4 {
		y[0] += float32(s * x[0])
		y[1] += float32(s * x[1])
		y[2] += float32(s * x[2])
		y[3] += float32(s * x[3])
		x, y = x[4:], y[4:]
	}
	for i, v := range x {
		y[i] += float32(s * v)
	}
}
