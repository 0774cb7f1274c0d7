// SPDX-License-Identifier: Apache-2.0

package lm

import (
	"math"
	"testing"
)

func TestExpAndLogAreAccurate(t *testing.T) {
	for i := range 20000 {
		x := -float64(i) / 100
		if got, want := exp(x), math.Exp(x); math.Abs(got-want) > 1e-14*want {
			t.Fatalf("exp(%v) = %v, want %v", x, got, want)
		}
	}
	for i := 1; i < 20000; i++ {
		x := float64(i) / 37
		if got, want := log(x), math.Log(x); math.Abs(got-want) > 1e-14*max(1, math.Abs(want)) {
			t.Fatalf("log(%v) = %v, want %v", x, got, want)
		}
	}
	if exp(-701) != 0 || exp(math.Inf(-1)) != 0 || exp(0) != 1 || !math.IsNaN(exp(math.NaN())) {
		t.Error("exp is wrong at the ends")
	}
	if got, want := power(0.9, 37), math.Pow(0.9, 37); math.Abs(got-want) > 1e-14*want {
		t.Errorf("power: %v, want %v", got, want)
	}
}

func TestStreamsDiffer(t *testing.T) {
	seen := map[uint64]string{}
	for _, purpose := range []string{"dropout", "initial"} {
		for seed := range uint64(3) {
			for a := range uint64(20) {
				for b := range uint64(20) {
					s := newStream(seed, purpose, a, b)
					first := s.next()
					if other, ok := seen[first]; ok {
						t.Fatalf("stream %s %d %d %d starts like %s", purpose, seed, a, b, other)
					}
					seen[first] = purpose
				}
			}
		}
	}
}

func TestVectorsMatchPlainLoops(t *testing.T) {
	draw := newStream(1, "test", 0, 0)
	for n := range 40 {
		a, b, y := make([]float32, n), make([]float32, n), make([]float32, n)
		var want float64
		for i := range a {
			a[i], b[i], y[i] = draw.symmetric(), draw.symmetric(), draw.symmetric()
			want += float64(a[i]) * float64(b[i])
		}
		if got := float64(dot(a, b)); math.Abs(got-want) > 1e-5 {
			t.Errorf("dot of %d: %v, want %v", n, got, want)
		}
		before := append([]float32(nil), y...)
		axpy(y, 3, a)
		for i := range y {
			if y[i] != before[i]+float32(3*a[i]) {
				t.Errorf("axpy of %d: element %d is %v", n, i, y[i])
			}
		}
	}
}
