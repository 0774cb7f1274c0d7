// SPDX-License-Identifier: Apache-2.0

// Package host reduces gradients on the CPU. It runs in the daemons: one [Engine] for each daemon, and so for each rank.
// The trainers write inputs into their segments (shared memory) and read results there; the engines of one host read each
// other's segments directly, engines of different hosts exchange frames over a [Link]. Nobody ever writes another member's
// memory, and no trainer holds a connection.
//
// # The sum
//
// Sums have the shape of [phalanx.SlotTree]. A member with a range of slots supplies one buffer for each node of the
// range's cover. The value of a node is the supplied buffer if there is one, else value(left) + value(right); a missing
// sibling is passed through, never added as 0. At the root the sum is multiplied once by 1/S when asked: float32(1/S) for
// float32 and the 16-bit types, the float64 for float64, never for int64. So the bits depend on the inputs alone, not on
// the world, the hosts, who came first or the algorithm. The 16-bit types are widened to float32, summed in the tree and
// rounded once at the end; but a trainer that sums several slots into a 16-bit buffer has rounded already, and then the
// bits depend on the deal. Gradients that must not depend on it are supplied as float32.
//
// # An operation
//
//	enter    publish what is asked (board: posted, sig, offsets; frames: post) and wait until everybody has entered
//	agree    compare signatures, check that the buffers of the others lie in their segments
//	move     direct, or halving and doubling
//	leave    say that we read nobody's memory any more, and wait until the members of this host say so too
//
// A small sum inside of one host takes one round instead of move and leave: inputs are offered on the boards before entering,
// and each member sums everything from there. See round.go.
//
// Nobody leaves before everybody has entered, so members are never more than one operation apart. Completion without an
// error means that no member reads this member's inputs or result any more: the trainer may overwrite both.
//
// Direct (all kinds; all-reduce up to Options.DirectMax members): each member owns a shard of the elements, sums it from
// everybody's inputs into its own result, chunk by chunk, and everybody copies it from there. Halving and doubling
// (all-reduce of larger groups): members exchange halves, then quarters of the elements. What travels then is not one
// partial sum but the value of each largest complete subtree, which keeps the tree's shape.
//
// # Groups of ranks
//
// Besides the two groups of the step, all seats and those of one coordinate, a trainer makes groups of any ranks ([Engine.Make]): what a
// process group of PyTorch needs. They have all kinds, types and reductions; see shape.go for what each kind means for a member.
// Their sums have a leaf for each member, in the order of the group. Each has a worker and a lane, its part of the board of each member:
// any free one, which the others find by the generation and id that stand there. So to make a group waits for nobody, and a member
// that has not made it yet is one that has not entered. Frames of a group that is not known here yet are kept. All move by the
// direct form, and small ones inside of one host by one round.
//
// Messages (Send, Recv) are the courier's, beside all operations; see courier.go.
//
// [Engine.Abort] ends one group on all members: the board and a frame say which operation was given up, and members that wait in
// that one or a later one give up too. An older one needs nothing of the member any more. A lane is used again once all members
// know that its group is dead. A daemon that takes over finds its groups on the lanes and goes on; messages end then, because
// nobody knows how many there were.
//
// # Between members
//
// Inside a host: the board, words of shared memory with one writer. Progress is a stored word; a member that sleeps says
// so on its board, and only then is it rung. Between hosts: frames. A receiver grants credit, so what may arrive is
// bounded and the reader of a link never blocks; hence no two members can wait for each other's sockets.
//
// # Generations
//
// Words and frames carry the generation; others are dropped. A link keeps the few frames that come for a generation which
// this side has not formed yet. After every chunk that was read from another member's memory the reader looks at that
// member's posted word again and gives up when it moved: a stopped daemon may wake long after the others went on. Revoke
// ends everything within a chunk. A worker clears its posted word before the trainer hears that the operation ended, so
// whoever still reads will notice, and the trainer may reuse its memory.
//
// # Waiting
//
// Each group has one goroutine (a worker), and the messages of a generation have one (the courier), which wait on one channel for a
// ring, a frame, a revoke or Options.Timeout without progress. Small operations of one host may run on the caller's goroutine instead (Options.Inline): a ring then needs one
// wake-up of one thread. Whichever of the two runs one, it alone touches segments. An operation that fails on one member is given up on all.
package host
