// SPDX-License-Identifier: Apache-2.0

package ckpt

import (
	"math/rand/v2"
	"testing"
)

func TestJoinCRC(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	p := make([]byte, 70_000)
	for i := range p {
		p[i] = byte(random.Uint32())
	}
	for range 500 {
		n := random.IntN(len(p) + 1)
		b := p[n : n+random.IntN(len(p)-n+1)]
		if got, want := joinCRC(Checksum(p[:n]), Checksum(b), int64(len(b))), Checksum(p[:n+len(b)]); got != want {
			t.Fatalf("%d and %d bytes: %s, want %s", n, len(b), got, want)
		}
	}
}
