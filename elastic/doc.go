// SPDX-License-Identifier: Apache-2.0

// Package elastic decides. It holds three pure machines and does no I/O: State.Apply is the replicated state, Planner.Plan the
// leader's policy, Machine.Step each daemon's own machine. None of them knows a clock, a goroutine, a network or chance: times
// are recorded in commands and never compared, and an expired deadline reaches them as an event or a fact. The same input
// gives the same output on every daemon, so tests can hold whole runs still and play them again.
//
//	facts ──► Planner.Plan ──► command ──► the replicated log ──► State.Apply ──► State ──► Machine.Step ──► actions
//	  ▲                                                                                       ▲   │
//	  └──────────── answers to seals, evidence, possession ◄──── loop of each daemon ◄── events   ▼
//
// # The phase of the job
//
// Only State.Apply changes it.
//
//	          FormGeneration, Rewind               Activate
//	  idle ─────────────────────────► forming ─────────────────► running
//	                                  ▲  │  ▲                      │  │
//	      FormGeneration, Rewind      │  │  └── FormGeneration, ───┘  │
//	      with enough groups          │  │      Rewind               │
//	                                  │  │ too few groups, Halt      │
//	                                 halted ◄────────────────────────┘
//
//	forming, running ── Done ──► finished         (final; checkpoints are still published)
//	any but finished ── Halt ──► halted, ended    (poison, crash loop, an operator's stop)
//	halted, ended ── Resume ──► halted or idle    (the job was started again)
//
// What becomes of a command that fits the present world, by phase. "ended" is halted for a reason that does not go away.
// "illegal" is ErrIllegal. A refused command changes Seq alone.
//
//	command             idle     forming  running  halted   ended    finished
//	AdmitMembers        ok       ok       ok       ok       ok       illegal
//	EvictMembers        ok       ok       ok       ok       ok       illegal
//	FormGeneration      ok       ok       ok       ok       illegal  illegal
//	Rewind              ok       ok       ok       ok       illegal  illegal
//	Activate            illegal  ok       illegal  illegal  illegal  illegal
//	PublishCheckpoint   illegal  ok       ok       ok       ok       ok
//	ReachLevel          illegal  ok       ok       ok       illegal  illegal
//	Quarantine          ok       ok       ok       ok       ok       illegal
//	Lift                ok       ok       ok       ok       ok       illegal
//	Drain               ok       ok       ok       ok       ok       illegal
//	Resize              ok       ok       ok       ok       ok       illegal
//	Halt                ok       ok       ok       ok       illegal  illegal
//	Resume              illegal  illegal  illegal  illegal  ok       illegal
//	Done                illegal  ok       ok       illegal  illegal  illegal
//
// Beside the phase a command is refused with ErrBase when it was computed for another generation, rests on seals of another
// one or, without being a rewind, on none; with ErrFloor when it would lower the floor or give it another label, or rewind
// below a published checkpoint that it does not name as unreadable; with ErrWorld when the world is not made of whole groups
// of living members at their places, or of too few; with ErrLineage when a label was abandoned by a rewind; with ErrMember
// when a life is not the one that the log knows, or has been used.
//
// # The states of a member
//
// Only State.Apply changes them. A seat in the world means active or draining, and nothing else does.
//
//	             AdmitMembers           in the next world
//	  (unknown) ─────────────► joining ──────────────────► active ◄──────────┐
//	                              │                        │  │              │ in the next world
//	          the world is full   ▼    not in the next one │  │ Drain,       │
//	                            spare ◄────────────────────┘  │ Quarantine   │
//	                              └──────────────────────────────────────────┘
//	                                                          ▼
//	  gone ◄──── the next world, or an eviction ────────── draining ── quarantined: the next world ──► quarantined
//
//	joining, spare ── EvictMembers, Drain ──► gone        joining, spare ── Quarantine ──► quarantined ── Lift ──► gone
//	active ── evicted by FormGeneration or Rewind ──► gone
//	gone ── AdmitMembers of a later incarnation ──► joining, or quarantined while the quarantine is not lifted
//
// The same line by line: every change of a member's state that one command makes. A later incarnation takes the place of the
// one before it; a member that is forgotten has been gone.
//
//	from         command         to
//	(unknown)    AdmitMembers    joining
//	(unknown)    AdmitMembers    spare
//	joining      AdmitMembers    spare
//	joining      EvictMembers    gone
//	joining      FormGeneration  active
//	joining      FormGeneration  spare
//	joining      Rewind          active
//	joining      Rewind          spare
//	joining      Quarantine      quarantined
//	joining      Drain           gone
//	active       FormGeneration  spare
//	active       FormGeneration  gone
//	active       Rewind          spare
//	active       Rewind          gone
//	active       Quarantine      draining
//	active       Drain           draining
//	spare        EvictMembers    gone
//	spare        FormGeneration  active
//	spare        Rewind          active
//	spare        Quarantine      draining
//	spare        Quarantine      quarantined
//	spare        Drain           draining
//	spare        Drain           gone
//	draining     EvictMembers    gone
//	draining     FormGeneration  spare
//	draining     FormGeneration  quarantined
//	draining     FormGeneration  gone
//	draining     Rewind          quarantined
//	draining     Rewind          gone
//	draining     Activate        quarantined
//	draining     Activate        gone
//	quarantined  Lift            gone
//	quarantined  Drain           gone
//	gone         AdmitMembers    joining
//	gone         AdmitMembers    spare
//	gone         AdmitMembers    quarantined
//
// # A daemon's own machine
//
// Only Machine.Step changes it. Every generation is entered by reading its entry.
//
//	         Read: a seat                 Formed: stands at the floor        first vote
//	idle ──────────────────► forming ──────────────────────────────► ready ─────────────► running
//	 ▲                          │ Formed: below, above or beside it   ▲  │                   │
//	 │ Read: no seat            └──────────────► healing ─────────────┘  │                   │
//	 │                                              │ the floor is read  │                   │
//	 │                                              ▼                    ▼                   ▼
//	 └── from any state     sealing ◄──────────── aborting ◄──────── SealAsked (at once, or at the boundary)
//	                           │     WorkersLeft     ▲
//	                           │     the answer      │
//	                           └── Read: the next generation; one that was sealed unread is aborted again
//
// The table shows what each event leads to for a member of a world of two at the floor, whose peer has not voted yet: Read
// brings a next generation with a seat; Seen a request to vote for the next step; SealAsked an ordinary seal; the others
// are of the present generation. The idle member is a spare.
//
//	state     event        then      actions
//	idle      Read         forming   StopHealing Abort Form WriteSeat:park
//	idle      Seen         idle
//	idle      PeerVoted    idle
//	idle      SealAsked    idle
//	idle      WorkersLeft  idle
//	idle      Formed       idle
//	idle      HealBroken   idle
//	idle      Lease        idle
//	forming   Read         forming   StopHealing Abort Form WriteSeat:park
//	forming   Seen         forming
//	forming   PeerVoted    forming
//	forming   SealAsked    aborting  WriteSealed WriteSeat:park Abort
//	forming   WorkersLeft  forming
//	forming   Formed       ready     WriteSeat:run
//	forming   HealBroken   forming
//	forming   Lease        forming
//	healing   Read         forming   StopHealing Abort Form WriteSeat:heal Heal
//	healing   Seen         healing
//	healing   PeerVoted    healing
//	healing   SealAsked    aborting  WriteSealed WriteSeat:park Abort
//	healing   WorkersLeft  healing
//	healing   Formed       healing
//	healing   HealBroken   healing   Report
//	healing   Lease        healing
//	ready     Read         forming   StopHealing Abort Form WriteSeat:park
//	ready     Seen         running   WriteVote
//	ready     PeerVoted    ready
//	ready     SealAsked    aborting  WriteSealed WriteSeat:park Abort
//	ready     WorkersLeft  ready
//	ready     Formed       ready
//	ready     HealBroken   ready
//	ready     Lease        ready
//	running   Read         forming   StopHealing Abort Form WriteSeat:park
//	running   Seen         running
//	running   PeerVoted    running   WriteCommit
//	running   SealAsked    aborting  WriteSealed WriteSeat:park Abort
//	running   WorkersLeft  running
//	running   Formed       running
//	running   HealBroken   running
//	running   Lease        running
//	aborting  Read         forming   StopHealing Abort Form WriteSeat:park
//	aborting  Seen         aborting
//	aborting  PeerVoted    aborting
//	aborting  SealAsked    aborting
//	aborting  WorkersLeft  sealing   AnswerSeal
//	aborting  Formed       aborting
//	aborting  HealBroken   aborting
//	aborting  Lease        aborting
//	sealing   Read         forming   StopHealing Abort Form WriteSeat:park
//	sealing   Seen         sealing
//	sealing   PeerVoted    sealing
//	sealing   SealAsked    sealing   AnswerSeal
//	sealing   WorkersLeft  sealing
//	sealing   Formed       sealing
//	sealing   HealBroken   sealing
//	sealing   Lease        sealing
//
// # The rules
//
// A step is decided when every member of the world has voted ok for it with equal digests per coordinate, or when an entry
// names it, or a later one, as its resume step. What is decided stays so; only a rewind opens another branch.
//
// A vote is a promise and final. It is cast by a member that stands at the floor, or at a step made in the present
// generation, at the coordinate of its rank, and holds a lease. It is on the page before anybody hears of it. A vote for n,
// ok or not, says that n−1 is applied.
//
// A seal is a promise too: no vote in this generation or before it, ever. One sealed member is enough to make a generation
// dead, so a seal is evidence in itself, whatever became of its reason. Its answer says what was promised and what a living
// trainer possesses, and waits until no worker is in the segments of the generation.
//
// The resume step follows from any non-empty set of answers (Resume). Different sets may give different steps; each is safe
// alone, and the base check lets one into the log. The floor never falls: an entry that named it has decided it.
//
// Possession is exact: a living trainer whose label is the floor's, with its coordinate, or that stands one step below with
// the gradient that makes it, or is applying that gradient now. Everything else heals. Donors stay where they are because
// nobody can decide the next step without the vote of the one that heals; leftovers of broken groups and spares serve from
// outside of the world. A member that leaves while it alone possesses a coordinate does so too, until the first commit.
//
// When a coordinate of the resume step is possessed by nobody, and nobody out of reach may still train, the next entry is a
// rewind to the newest step of the lineage of which every coordinate exists: with living trainers, in slabs, in the store,
// or in the seed. A world that ended with nobody left is followed by a rewind alone, because no seal says what it decided.
//
// A planned change names a step ahead of every vote. Members vote up to it and answer as soon as they have applied it, so no
// work is lost; whoever cannot reach it answers at once and makes it an ordinary seal.
//
// Check and CheckStep say what every command keeps. The stories in testdata show the rules at work, the shortest traces that
// break weaker ones among them.
package elastic
