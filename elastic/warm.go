// SPDX-License-Identifier: Apache-2.0

package elastic

import (
	"slices"

	"phalanx"
)

// WarmStart says that the state of step 0 is not the one that the seed makes: it is read from a checkpoint of another job, or of
// another program. It is committed with the job's spec, so that every member reads the same.
type WarmStart struct {
	Place   string   `json:"place"` // path or URL
	Only    []string `json:"only,omitempty"`
	Renames []string `json:"renames,omitempty"` // OLD=NEW, in order
	Strip   bool     `json:"strip_prefixes,omitempty"`
	Cast    bool     `json:"cast,omitempty"`    // floating-point tensors, to the dtype of the state
	Partial bool     `json:"partial,omitempty"` // tensors may be missing on either side
}

// Equal reports whether two starts are the same; nil is none.
func (w *WarmStart) Equal(o *WarmStart) bool {
	if w == nil || o == nil {
		return w == o
	}
	return w.Place == o.Place && slices.Equal(w.Only, o.Only) && slices.Equal(w.Renames, o.Renames) && w.Strip == o.Strip && w.Cast == o.Cast && w.Partial == o.Partial
}

// WarmFact is what the leader has found at the place of a warm start.
type WarmFact struct {
	Digest  phalanx.Digest // names the checkpoint and what is taken of it
	Problem string         // why the job cannot begin with it, "" when it can
}

// beginning is the state of step 0 and where it is read. Its label has a digest only if the seed does not make it, so a trainer that
// has just started does not stand there.
func (s *State) beginning(f *Facts) (Floor, Source) {
	floor := InitialFloor(s.GroupSize())
	if s.WarmStart == nil {
		return floor, Source{Kind: FromSeed}
	}
	for c := range floor.Labels {
		floor.Labels[c].Digest = f.Store.Warm.Digest
	}
	return floor, Source{Kind: FromWarmStart}
}
