// SPDX-License-Identifier: Apache-2.0

// Package s3 is a checkpoint store in a bucket of an object store that speaks S3.
//
// An object is one PUT of known size, with its checksum in a header that the store verifies; there are no multipart uploads,
// copies, renames, and no bucket is ever created. PutIfAbsent sends If-None-Match: *, PutIfMatch If-Match, and the store
// decides: 412 is final, 409 may be tried again. A write whose answer did not come is ckpt.ErrConflict: it may have happened,
// or still happen.
//
// A call is one try with a deadline that follows from its size; storewrap.Retry makes more of it, and storewrap.Limit bounds
// how many run. Errors carry ckpt's sentinels, the code that the store gave, and what to do. Nothing here prints or stores a
// secret: credentials come from the environment, files or a token file, never from the URL, and metadata addresses are asked
// only with iam=1.
//
// Probe tries the store out with one object of a random name: whether the conditions hold, which checksums are taken and
// verified, and what is wrong with bucket, region, key, rights or clock.
package s3
