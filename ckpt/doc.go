// SPDX-License-Identifier: Apache-2.0

// Package ckpt writes, publishes, reads, verifies and removes checkpoints in an object store.
//
// # Roles
//
// Every rank's daemon calls WriteShard with the same Plan: it writes data objects, then one part file. The leader calls
// Publish with the parts: it proves that they are whole, agree and cover every element, and creates the commit object.
// Anybody calls Latest, Open, State.ReadRange, State.Restore and Checkpoint.VerifyAll, without a running job. The leader
// takes stock after a publish (TakeInventory), asks its Policy, and calls Forget and GC; an operator does the same by hand.
// Plan, Cover, Merge, PlanReads, DealReads, Policy.Decide, PlanSweep and Abandoned are pure.
//
// A program that saves by itself (package intake) hands over boxes that nobody has named yet: WriteSheet writes them and a
// sheet, on any number of hosts. PublishHanded gets PyTorch's index, which names them, makes the parts (Assemble) and publishes.
//
// # What is promised
//
// A checkpoint is published when its commit object exists, and only then; there is no other mark. Until then readers see
// nothing of it, afterwards it can be restored at any world size until it is forgotten, which replaces the commit object by a
// stub that holds it. Undelete puts it back, bit for bit, until GC has replaced that stub, and only then GC deletes data. Every byte that a reader returns belongs to a chunk whose checksum it has verified.
//
// The numbers of commit objects have no gaps, and a commit object is created only if it is absent and names the digest of
// the one before it. So two lineages that share a store meet at the next number and one of them loses (ErrFenced). A
// publisher also refuses to follow a commit of a newer generation, of a newer branch, or of a step of its own branch that is
// not older. This holds without any process of the job: the store alone is enough, if it creates conditionally.
//
// A commit object that can be read no more (a flipped byte, a wrong number) keeps its number. The next commit names the
// SHA-256 of its bytes as they are and follows the newest commit that can be read, which alone fences then; what the damaged
// one fenced is lost with it, and so is its step until the object is put back from a copy. Readers report it and take the
// newest that is whole. GC deletes neither it nor any folder that it may name: all but those that a record before it fences.
// An object whose format number is higher than this program's is not damaged: nothing is published after it.
//
// When the outcome of a write is not known (ErrConflict), the writer reads before it decides, or offers the same bytes
// again. What an attempt writes depends on the attempt, the plan and the state alone, never on who writes it or when, so a
// dead rank's share can be taken over and a leader's successor can ask again.
//
// # Keys
//
//	JOB/step-STEP-gGENERATION-aTERM.COUNTER/__RANK_N.distcp       data objects of container dcp, N from 0
//	JOB/step-STEP-gGENERATION-aTERM.COUNTER/rank-RANK-NNNNN.raw   data objects of container raw, NNNNN from 00000
//	JOB/step-STEP-gGENERATION-aTERM.COUNTER/part-RANK.json        after all data objects of the rank
//	JOB/step-STEP-gGENERATION-aTERM.COUNTER/.metadata             container dcp: PyTorch's index, after all parts
//	JOB/step-STEP-gGENERATION-aTERM.COUNTER/write-RANK-N.json     sheets of what programs handed over, before their parts
//	JOB/commits/NNNNNNNNNNNN.json                                 last; from 000000000001
//
// JOB is one key element (ValidKey). STEP, TERM, COUNTER and RANK are decimal without leading zeros; GENERATION is NUMBER, or
// EPOCH.NUMBER when the epoch is not 0. TERM and COUNTER are the Raft term of the leader that announced the save and its count
// of attempts: no two attempts share a folder. Names that do not parse are ignored.
//
// # Formats
//
// docs/checkpoint-format.md specifies every object to the byte: the containers, the part file, the commit object and its stub.
// The types here carry the same names. In short: a chunk is the bytes of one contiguous box of one tensor, elements
// little-endian, row-major, uncompressed, at a multiple of 64 bytes in its object; in container dcp it is the payload of a
// record as torch.save writes it, and the folder is a checkpoint that torch.distributed.checkpoint.load reads by itself.
//
// A reader refuses a format number that it does not know and fields that its format number does not have; any change adds one
// to the number, and the number before is still read. testdata/golden-raw-v1 and testdata/golden-dcp-v2 hold checkpoints of
// formats 1 and 2, which the tests read, and the newer one they write byte for byte.
package ckpt
