// SPDX-License-Identifier: Apache-2.0

// Package ckpt writes, publishes, reads, verifies and prunes checkpoints in an object store.
//
// # Roles
//
// Every rank's daemon calls WriteShard with the same Plan: it writes data objects, then one part file. The leader calls
// Publish with the parts: it proves that they are whole, agree and cover every element, and creates the commit object.
// Anybody calls Latest, Open, State.ReadRange, State.Restore and Checkpoint.VerifyAll, without a running job. The leader
// calls Prune with what Retain says. Plan, Cover, Merge, PlanReads, DealReads, Retain and Abandoned are pure.
//
// # What is promised
//
// A checkpoint is published when its commit object exists, and only then; there is no other mark. Until then readers see
// nothing of it, afterwards it can be restored at any world size until retention drops it, and retention first replaces the
// commit object by a stub. Every byte that a reader returns belongs to a chunk whose checksum it has verified.
//
// The numbers of commit objects have no gaps, and a commit object is created only if it is absent and names the digest of
// the one before it. So two lineages that share a store meet at the next number and one of them loses (ErrFenced). A
// publisher also refuses to follow a commit of a newer generation, of a newer branch, or of a step of its own branch that is
// not older. This holds without any process of the job: the store alone is enough, if it creates conditionally.
//
// A commit object that can be read no more (a flipped byte, a wrong number) keeps its number. The next commit names the
// SHA-256 of its bytes as they are and follows the newest commit that can be read, which alone fences then; what the damaged
// one fenced is lost with it, and so is its step until the object is put back from a copy. Readers report it and take the
// newest that is whole. Prune deletes neither it nor any folder that it may name: all but those that a record before it fences.
// An object whose format number is higher than this program's is not damaged: nothing is published after it.
//
// When the outcome of a write is not known (ErrConflict), the writer reads before it decides, or offers the same bytes
// again. What an attempt writes depends on the attempt, the plan and the state alone, never on who writes it or when, so a
// dead rank's share can be taken over and a leader's successor can ask again.
//
// # Keys
//
//	JOB/step-STEP-gGENERATION-aTERM.COUNTER/rank-RANK-NNNNN.raw   data objects, NNNNN from 00000
//	JOB/step-STEP-gGENERATION-aTERM.COUNTER/part-RANK.json        after all data objects of the rank
//	JOB/commits/NNNNNNNNNNNN.json                                 after all parts; from 000000000001
//
// JOB is one key element (ValidKey). STEP, TERM, COUNTER and RANK are decimal without leading zeros; GENERATION is NUMBER, or
// EPOCH.NUMBER when the epoch is not 0. TERM and COUNTER are the Raft term of the leader that announced the save and its count
// of attempts: no two attempts share a folder. Names that do not parse are ignored.
//
// # Container "raw", format 1
//
// A data object is a sequence of chunks. It has no header and no trailer:
//
//	offset 0                chunk 0
//	next multiple of 64     chunk 1, the bytes between are 0
//	…                       the object ends with the last byte of its last chunk
//
// A chunk is the bytes of one contiguous box of one tensor: elements little-endian, row-major, as in memory, uncompressed. A
// box is contiguous when its size is 1 in every dimension outside of some dimension d and the whole extent in every dimension
// inside of d. A chunk is never empty and never crosses objects. A tensor without elements has no chunk.
//
// All checksums of objects, chunks and parts are CRC-64/NVME over exactly the bytes stated (reflected polynomial
// 0x9a6c9329ac4bc9b5, initial value and final XOR all ones), as 16 lower-case hex digits, the most significant first. It is
// the checksum that S3 calls CRC64NVME: for an object it is what the store itself verifies. Digests "d1" and "digest" are D1
// with seed 0 (package kernels), 32 hex digits. SHA-256 are 64 lower-case hex digits.
//
// # Part file
//
// One JSON object, at most 256 MiB, in UTF-8, one line:
//
//	format      1
//	container   "raw"
//	attempt     name of the folder
//	rank        whose share this is
//	coordinate  the shard coordinate of that rank's state, from 0
//	layout      SHA-256 over all tensors of the coordinate in layout order: for each the line ["NAME","DTYPE",[DIM,…]] as
//	            encoding/json prints it, and a newline
//	tensors     [{index, name, dtype, shape, d1}]: index is the place in the layout, ascending; the tensors that this rank
//	            wrote any part of; the coordinate's lowest rank adds those without elements
//	objects     [{name, size_bytes, crc64nvme}]
//	chunks      [{tensor, offset, size, object, at, length, codec, crc64nvme}]: tensor is an index as above; offset and size
//	            are the box, one number for each dimension; object is a place in objects, at the first byte in it, a multiple
//	            of 64; length the stored bytes; codec "raw"; crc64nvme that of the tensor's bytes
//
// dtype is f64, i64, f32, i32, f16, bf16 or u8. The parts of a coordinate together list every tensor, and their boxes cover
// every element exactly once. A tensor that several ranks wrote is listed by each, with the digest of the whole tensor in
// that rank's own memory; they must be equal.
//
// # Commit object
//
// One JSON object, at most 64 MiB, indented by one space:
//
//	format, kind   1, "commit"
//	number         as in its key
//	job, attempt   the folder JOB/ATTEMPT holds the data
//	branch         counts the rewinds of the job
//	step           the state is the one after this step; as in the attempt
//	generation     the number, or the string "EPOCH.NUMBER" when the epoch is not 0; as in the attempt
//	unix_ns        when the leader published it, by its clock; nothing depends on it
//	container      "raw"
//	states         [{label, digest, tensors, bytes}], one for each coordinate, in order; digest is the D1 job root over all
//	               tensors of the coordinate
//	parts          [{name, rank, coordinate, size_bytes, crc64nvme, sha256}], in rank order
//	predecessor    SHA-256 of the bytes of the commit object with the number before, as it was then, "" for the first
//	spec           the job's committed spec, any JSON; may be absent
//
// A stub has format, number, job, attempt, branch, step, generation, unix_ns and predecessor as the commit had them, kind
// "stub", sha256 (of the bytes of the commit object, which the next one's predecessor names) and swept (true: its data were
// deleted).
//
// # Versions
//
// A reader refuses a format number that it does not know and fields that its format number does not have; any change adds one
// to the number, and the number before is still read. testdata/golden-raw-v1 holds a checkpoint of format 1 that the tests
// read and write byte for byte.
package ckpt
