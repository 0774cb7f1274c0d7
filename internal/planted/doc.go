// SPDX-License-Identifier: Apache-2.0

// Package planted names the bugs that the test suite must be able to find. A bug is a place in the code that asks On: in a
// build with the tag planted it answers true for the one bug that a test has switched on, and counts the question; in every
// other build On is constant and the compiler drops the place. For each bug there is a test that fails without it being
// noticed, or without its place being reached: a proof that does not see these would not see an honest mistake either.
package planted

// Bug is one planted bug.
type Bug string

// The weakened rules of the step protocol. docs/protocol.md says what each rule is for.
const (
	// ResumeApplied resumes at the newest step that a survivor has applied, instead of the newest that may be decided.
	ResumeApplied Bug = "resume-applied"
	// FloorForgotten lets the resume step fall below the floor of the generation that ends.
	FloorForgotten Bug = "floor-forgotten"
	// BaseUnchecked applies an entry that was computed for another generation.
	BaseUnchecked Bug = "base-unchecked"
	// SealForgotten loses the seal when the daemon is restarted.
	SealForgotten Bug = "seal-forgotten"
	// VoteBeforePage publishes a vote that is not on the page yet.
	VoteBeforePage Bug = "vote-before-page"
	// OnlyOKCounts leaves votes that are not ok out of the resume step.
	OnlyOKCounts Bug = "only-ok-counts"
	// VoteChanges overwrites a vote by a later one for the same step.
	VoteChanges Bug = "vote-changes"
	// NoLabel takes a state for the floor's by its step alone.
	NoLabel Bug = "no-label"
	// NoCoordinate leaves the coordinate out of the label.
	NoCoordinate Bug = "no-coordinate"
	// OnlyBelowHeals lets a member above the floor, or beside it, vote without healing.
	OnlyBelowHeals Bug = "only-below-heals"
	// HealUnmarked keeps the old label on the page while a heal overwrites the state.
	HealUnmarked Bug = "heal-unmarked"
	// RewindAnywhere rewinds to any living state, also of an abandoned branch.
	RewindAnywhere Bug = "rewind-anywhere"
	// RewindBelowPublished applies a rewind below a checkpoint that was published meanwhile.
	RewindBelowPublished Bug = "rewind-below-published"
	// BoundaryUnnamed seals for a planned change at each member's next step instead of one named for all.
	BoundaryUnnamed Bug = "boundary-unnamed"
	// SealNoEvidence forgets that a sealed member of the current generation is evidence against it.
	SealNoEvidence Bug = "seal-no-evidence"
)

// Others.
const (
	// SealIgnored votes in a generation that it has sealed.
	SealIgnored Bug = "seal-ignored"
	// CommitShort commits a step without one of the votes.
	CommitShort Bug = "commit-short"
	// AppliedTwice carries out a commit that the trainer has applied already.
	AppliedTwice Bug = "applied-twice"
	// GenerationReused gives the next world the number of the present one.
	GenerationReused Bug = "generation-reused"
	// HealInsideApply serves the state to a healing member while the optimizer changes it.
	HealInsideApply Bug = "heal-inside-apply"
	// SlotsMerged computes two slots of a rank in one pass.
	SlotsMerged Bug = "slots-merged"
	// VoteElsewhere writes a vote from another goroutine than the loop's.
	VoteElsewhere Bug = "vote-elsewhere"
)

// All lists every bug, rules first.
func All() []Bug {
	return []Bug{
		ResumeApplied, FloorForgotten, BaseUnchecked, SealForgotten, VoteBeforePage, OnlyOKCounts, VoteChanges, NoLabel,
		NoCoordinate, OnlyBelowHeals, HealUnmarked, RewindAnywhere, RewindBelowPublished, BoundaryUnnamed, SealNoEvidence,
		SealIgnored, CommitShort, AppliedTwice, GenerationReused, HealInsideApply, SlotsMerged, VoteElsewhere,
	}
}
