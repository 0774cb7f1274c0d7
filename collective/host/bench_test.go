// SPDX-License-Identifier: Apache-2.0

package host

import (
	"fmt"
	"syscall"
	"testing"

	"phalanx"
)

// BenchmarkAllReduce sums float32 among ranks of one host in one process. Bytes are those of the gradient, so the rate is
// that of a rank; all ranks share the machine's cores.
func BenchmarkAllReduce(b *testing.B) {
	for _, size := range []int{4 << 10, 64 << 10, 1 << 20, 64 << 20} {
		for _, n := range []int{2, 4, 8} {
			for _, link := range []string{"shm", "tcp"} {
				b.Run(fmt.Sprintf("%dKiB/n=%d/%s", size>>10, n, link), func(b *testing.B) {
					hosts := make([]int, n)
					if link == "tcp" {
						hosts = ranks(n)
					}
					c := newCluster(b, layout{hosts: hosts, deal: evenDeal(b, n, n), slots: n, bytes: 8})
					defer c.close()
					for r := range c.segments {
						c.segments[r] = sharedMemory(b, 2*size+64)
					}
					c.formAll(b)
					op := Op{Kind: AllReduce, DType: F32, Count: int64(size / 4), InNodes: 1, OutOffset: int64(size), Scale: true}
					b.SetBytes(int64(size))
					b.ReportAllocs()
					for b.Loop() {
						c.mustAll(b, ranks(n), func(int) Op { return op })
					}
				})
			}
		}
	}
}

// sharedMemory has pages of the size that the trainers' segments have.
func sharedMemory(b *testing.B, n int) []byte {
	m, err := syscall.Mmap(-1, 0, n, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED|syscall.MAP_ANON|syscall.MAP_POPULATE)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = syscall.Munmap(m) })
	return m
}

// BenchmarkBarrier is the cost of agreeing without data.
func BenchmarkBarrier(b *testing.B) {
	c := newCluster(b, layout{hosts: make([]int, 4), deal: []phalanx.SlotRange{{First: 0, End: 1}, {First: 1, End: 2}, {First: 2, End: 3}, {First: 3, End: 4}}, slots: 4, bytes: 64})
	defer c.close()
	c.formAll(b)
	for b.Loop() {
		c.mustAll(b, ranks(4), func(int) Op { return Op{Kind: Barrier} })
	}
}
