// SPDX-License-Identifier: Apache-2.0

// Package fs is a checkpoint store in a directory.
//
// An object is a file whose path below the root is its key. It is written under a temporary name in ROOT/.tmp, synced, and
// then linked to its name: link fails when the name exists, so creation is exclusive among all processes and, on shared
// file systems, all hosts; a rename would silently replace. The directory is synced after the link. Replacing (Put,
// PutIfMatch) renames, under a lock file that only replacing writers of this package honour.
//
// A writer holds an flock on its temporary file. New removes temporary files that nobody holds and that are an hour old,
// which is what a killed writer leaves behind; the age covers file systems whose locks do not reach other hosts.
package fs
