// SPDX-License-Identifier: Apache-2.0

package node

import (
	"testing"

	"phalanx/elastic"
)

// A command that a newer version wrote stops the log; one that is refused is counted and changes nothing else.
func TestReplicaApplies(t *testing.T) {
	r := newReplica()
	apply := func(c elastic.Command) any {
		t.Helper()
		b, err := elastic.EncodeCommand(c)
		if err != nil {
			t.Fatal(err)
		}
		return r.Apply(b)
	}
	if got := apply(elastic.Resize{Want: 4}); got != nil {
		t.Fatalf("a lawful command: %v", got)
	}
	before := r.state.Load()
	if x, ok := apply(elastic.Resize{Want: 0}).(refusal); !ok || x.err == nil {
		t.Error("an unlawful command is not refused")
	}
	after := r.state.Load()
	if after.Seq != before.Seq+1 || after.Policy != before.Policy || before.Policy.Want != 4 {
		t.Errorf("from %+v to %+v", before, after)
	}
	for _, text := range []string{`{"version":1,"kind":"from_the_future","body":{}}`, `{"version":999,"kind":"resize","body":{}}`, "", "{", `{"kind":"resize"}`} {
		x, ok := r.Apply([]byte(text)).(interface{ Halt() error })
		if !ok || x.Halt() == nil {
			t.Errorf("%q does not halt the log", text)
		}
	}
	if r.state.Load() != after {
		t.Error("a command that was not understood changed the state")
	}
}

func TestReplicaSnapshotComesBack(t *testing.T) {
	r := newReplica()
	for _, want := range []int{2, 5} {
		b, err := elastic.EncodeCommand(elastic.Resize{Want: want})
		if err != nil {
			t.Fatal(err)
		}
		r.Apply(b)
	}
	snapshot, err := r.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	again := newReplica()
	if err := again.Restore(snapshot); err != nil {
		t.Fatal(err)
	}
	if a, b := r.state.Load(), again.state.Load(); a.Seq != b.Seq || a.Policy != b.Policy || b.Policy.Want != 5 {
		t.Errorf("%+v came back as %+v", a, b)
	}
	kept := again.state.Load()
	for _, text := range []string{"", "{", "{}", `{"version":999}`} {
		if err := again.Restore([]byte(text)); err == nil {
			t.Errorf("%q is restored", text)
		}
	}
	if again.state.Load() != kept {
		t.Error("a snapshot that was refused changed the state")
	}
}
