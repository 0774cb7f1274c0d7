// SPDX-License-Identifier: Apache-2.0

package node

import (
	"math"
	"net/url"
	"strconv"
	"testing"

	"phalanx"
)

func query() stateQuery {
	return stateQuery{
		gen:   phalanx.Generation{Epoch: 1, Number: 4},
		label: phalanx.Label{Step: 17, Generation: phalanx.Generation{Epoch: 1, Number: 3}, Digest: phalanx.Digest{3, 4}, Coordinate: 1},
		slab:  true, tensor: 2, count: 5, off: 4096, length: ringChunk,
	}
}

func TestStateQueryComesBackAsItWasAsked(t *testing.T) {
	want := query()
	for _, change := range []func(){func() {}, func() { want.tensor = -1 }, func() { want.slab = false }, func() { want.length, want.off = 0, 0 }} {
		change()
		got, err := parseStateQuery(want.values())
		if err != nil || got != want {
			t.Errorf("asked %+v, parsed %+v, %v", want, got, err)
		}
	}
}

func TestParseStateQueryBounds(t *testing.T) {
	for _, c := range []struct {
		name, value string
		ok          bool
	}{
		{"length", strconv.Itoa(ringChunk), true}, {"length", strconv.Itoa(ringChunk + 1), false}, {"length", "-1", false},
		{"off", strconv.Itoa(math.MaxInt64 - ringChunk), true}, {"off", strconv.Itoa(math.MaxInt64), false}, {"off", "-1", false},
		{"count", strconv.Itoa(ringChunk / digestSize), true}, {"count", strconv.Itoa(ringChunk/digestSize + 1), false}, {"count", "-1", false},
		{"length", "9223372036854775808", false}, {"length", "", false}, {"tensor", "x", false}, {"slab", "perhaps", false},
		{"generation", "", false}, {"made_in", "x", false}, {"digest", "0", false}, {"step", "-", false}, {"coordinate", "1.5", false},
	} {
		v := query().values()
		v.Set(c.name, c.value)
		if _, err := parseStateQuery(v); (err == nil) != c.ok {
			t.Errorf("%s=%q: %v", c.name, c.value, err)
		}
	}
	if _, err := parseStateQuery(url.Values{}); err == nil {
		t.Error("an empty query is taken")
	}
}

// FuzzParseStateQuery: what is taken is within the bounds and can be asked again.
func FuzzParseStateQuery(f *testing.F) {
	f.Add(query().values().Encode())
	f.Add("generation=1.1&off=9223372036854775807")
	f.Fuzz(func(t *testing.T, text string) {
		v, err := url.ParseQuery(text)
		if err != nil {
			t.Skip()
		}
		q, err := parseStateQuery(v)
		if err != nil {
			return
		}
		if q.off < 0 || q.length < 0 || q.length > ringChunk || q.off+q.length < q.off || q.count < 0 || q.count*digestSize > ringChunk {
			t.Fatalf("taken: %+v", q)
		}
		if again, err := parseStateQuery(q.values()); err != nil || again != q {
			t.Fatalf("parsed %+v, then %+v, %v", q, again, err)
		}
	})
}
