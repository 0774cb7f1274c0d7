// SPDX-License-Identifier: Apache-2.0

package phalanx

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
)

// FuzzGeneration: what is parsed prints as what parses alike, in text and in JSON, and keeps its order.
func FuzzGeneration(f *testing.F) {
	for _, s := range []string{"0", "7", "3.9", "4294967295.18446744073709551615", `"2.5"`, "1.", ".1", "-1", "00.07", "+1", "4294967296.0"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if g, err := ParseGeneration(s); err == nil {
			again, err := ParseGeneration(g.String())
			if err != nil || again != g || again.Compare(g) != 0 || !g.Less(Generation{g.Epoch, g.Number}.Next()) && g.Number != 1<<64-1 {
				t.Fatalf("%q is %s, then %s, %v", s, g, again, err)
			}
		}
		var g, again Generation
		if json.Unmarshal([]byte(s), &g) != nil {
			return
		}
		b, err := json.Marshal(g)
		if err == nil {
			err = json.Unmarshal(b, &again)
		}
		if err != nil || again != g {
			t.Fatalf("%s is %s, written as %s, then %s, %v", s, g, b, again, err)
		}
	})
}

// FuzzDigest: a digest is its 32 lower-case digits and nothing else.
func FuzzDigest(f *testing.F) {
	f.Add("00112233445566778899aabbccddeeff")
	f.Add("FF112233445566778899aabbccddeeff")
	f.Add("0011")
	f.Fuzz(func(t *testing.T, s string) {
		d, err := ParseDigest(s)
		if err != nil {
			if !d.IsZero() {
				t.Fatalf("%q is refused and gives %s", s, d)
			}
			return
		}
		var again Digest
		if again.UnmarshalText([]byte(d.String())) != nil || again != d || d.String() != strings.ToLower(s) {
			t.Fatalf("%q is %s, then %s", s, d, again)
		}
	})
}

// FuzzMemberID: a valid id is made again from its parts, is one path element as a file name, and is ordered totally.
func FuzzMemberID(f *testing.F) {
	f.Add("host/0", "host/10")
	f.Add("a.b-c_d/12", "/1")
	f.Add("x/+1", "x/01")
	f.Add(strings.Repeat("h", 62)+"/1", "..//0")
	f.Fuzz(func(t *testing.T, s, u string) {
		a, b := MemberID(s), MemberID(u)
		if CompareMemberIDs(a, b) != -CompareMemberIDs(b, a) || (CompareMemberIDs(a, b) == 0) != (a == b) {
			t.Fatalf("%q and %q compare as %d and %d", a, b, CompareMemberIDs(a, b), CompareMemberIDs(b, a))
		}
		if !a.Valid() {
			return
		}
		if a != NewMemberID(a.Host(), a.Index()) {
			t.Fatalf("%q has host %q and index %d, which make %q", a, a.Host(), a.Index(), NewMemberID(a.Host(), a.Index()))
		}
		if strings.ContainsAny(a.FileName(), "/\x00") || a.FileName() == "" || len(a) > MaxMemberIDBytes {
			t.Fatalf("%q is valid and its file is called %q", a, a.FileName())
		}
	})
}

// FuzzJobSpec: a spec that is valid can be dealt to any number of groups up to its slots, and reads back as it is.
func FuzzJobSpec(f *testing.F) {
	b, err := json.Marshal(JobSpec{LastStep: 5, Slots: 4, GlobalBatch: 8, GroupSize: 1, Settings: "x"})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add([]byte(`{"last_step":1,"slots":16777216,"global_batch":16777216,"group_size":1}`))
	// A tree over so many slots was doubled beyond what an int holds, for ever.
	f.Add([]byte(`{"last_step":1,"slots":9223372036854775807,"global_batch":9223372036854775807,"group_size":1}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		var s, again JobSpec
		if json.Unmarshal(b, &s) != nil || s.Validate() != nil {
			return
		}
		c, err := json.Marshal(s)
		if err == nil {
			err = json.Unmarshal(c, &again)
		}
		if d := s.Diff(again); err != nil || d != "" {
			t.Fatalf("%s is written as %s, which differs: %s, %v", b, c, d, err)
		}
		for _, groups := range []int{1, 2, 3, 5} {
			deal, err := DealSlots(s.Slots, groups)
			if (err == nil) != (groups <= s.Slots) {
				t.Fatalf("%d slots on %d groups: %v", s.Slots, groups, err)
			}
			if err == nil && (deal[0].First != 0 || int(deal[groups-1].End) != s.Slots) {
				t.Fatalf("%d slots are dealt as %v", s.Slots, deal)
			}
		}
		if bytes.Contains(c, []byte("\n")) {
			t.Fatalf("%q", c)
		}
	})
}
