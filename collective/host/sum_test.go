// SPDX-License-Identifier: Apache-2.0

package host

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"phalanx"
)

// TestSums reduces every type over hosts of several shapes, at sizes around chunk and shard borders.
func TestSums(t *testing.T) {
	layouts := map[string][]int{
		"alone":  {0},
		"local2": {0, 0},
		"local4": {0, 0, 0, 0},
		"remote": {0, 1},
		"mixed":  {0, 0, 1, 1, 2},
	}
	for name, hosts := range layouts {
		for _, d := range []DType{F32, F64, I64, BF16, F16} {
			t.Run(fmt.Sprint(name, "/", d), func(t *testing.T) {
				for _, count := range []int{0, 1, 17, 1000, 3*chunkElements + 5} {
					if testing.Short() && count > chunkElements {
						continue
					}
					for _, o := range []Options{{}, {OneRoundMax: -1}} {
						if o.OneRoundMax < 0 && count > chunkElements {
							continue // too much for one round anyway
						}
						checkSum(t, hosts, d, count, 11, o, AllReduce, count%2 == 1)
						checkSum(t, hosts, d, count, 11, o, ReduceScatter, count%2 == 1)
					}
				}
			})
		}
	}
}

func checkSum(t *testing.T, hosts []int, d DType, count, slots int, o Options, kind Kind, inPlace bool) {
	t.Helper()
	n := len(hosts)
	deal := evenDeal(t, slots, n)
	tree := phalanx.SlotTree{Slots: slots}
	c := newCluster(t, layout{hosts: hosts, deal: deal, slots: slots, bytes: sumBytes(d, count, tree.MaxCover()), options: o})
	defer c.close()
	c.formAll(t)
	rng := rand.New(rand.NewPCG(1, uint64(count)))
	for round := range 2 {
		l := newLeaves(rng, d, slots, count)
		ops := make([]Op, n)
		order := rng.Perm(n)
		for r := range ops {
			ops[r] = c.place(r, l, kind, round == 1, inPlace)
		}
		c.mustAll(t, order, func(r int) Op { return ops[r] })
		want := l.sum(deal, round == 1)
		for r := range ops {
			part := want
			if kind == ReduceScatter {
				first, end := Shard(int64(count), n, r)
				part = want[first*d.Size() : end*d.Size()]
			}
			differ(t, fmt.Sprintf("%s of %d, rank %d", kind, count, r), c.out(r, ops[r]), part)
		}
	}
}

// TestAroundTheCaches sums and gathers so much that results are written around the caches, in place and not.
func TestAroundTheCaches(t *testing.T) {
	hosts := []int{0, 0, 0, 0}
	count := cacheBytes/len(hosts)/4 + 333
	checkSum(t, hosts, F32, count, 4, Options{}, AllReduce, false)
	checkSum(t, hosts, F32, count, 4, Options{}, AllReduce, true)
	each := int64(cacheBytes/len(hosts)/len(hosts)/2 + 33) // of F16
	c := newCluster(t, layout{hosts: hosts, deal: evenDeal(t, 4, 4), slots: 4, bytes: int(round64(each*2))*6 + 256})
	defer c.close()
	c.formAll(t)
	c.gather(t, each, false)
}
