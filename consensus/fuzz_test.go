// SPDX-License-Identifier: Apache-2.0

package consensus

import (
	"bytes"
	"encoding/json"
	"testing"
)

// FuzzSnapshot: a stored snapshot is taken with its place in the log, or refused and changes nothing.
func FuzzSnapshot(f *testing.F) {
	b, err := json.Marshal(envelope{Version: snapshotVersion, Job: "job", Seq: 3, Index: 9, Term: 2, Machine: json.RawMessage(`["a","b"]`)})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add(bytes.Replace(b, []byte(`"job":"job"`), []byte(`"job":"other"`), 1))
	f.Add(bytes.Replace(b, []byte(`["a","b"]`), []byte(`{"a":1}`), 1))
	f.Add(b[:len(b)-1])
	f.Fuzz(func(t *testing.T, b []byte) {
		m := &list{}
		s := &fsm{job: "job", machine: m, at: Snapshot{Seq: 7}}
		seq, err := s.restore(bytes.NewReader(b))
		if err != nil {
			if s.at.Seq != 7 || seq != 0 {
				t.Fatalf("refused with %v, and at %d", err, s.at.Seq)
			}
			return
		}
		var e envelope
		if json.Unmarshal(b, &e) != nil || e.Job != "job" || e.Seq != seq || s.at.Index != e.Index || s.at.Term != e.Term {
			t.Fatalf("%s was taken as %d at %+v", b, seq, s.at)
		}
	})
}
