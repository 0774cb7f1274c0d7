// SPDX-License-Identifier: Apache-2.0

// Package intake lets programs write and read published checkpoints over HTTP on a unix socket: what the Python package hands
// over of torch.distributed.checkpoint. A daemon serves it to its trainer, and phalanx ckpt serve to a program without one.
//
// Bulk bytes that are written do not pass the socket. A store takes objects whole, with their checksums known before the first
// byte, so they have to lie somewhere first: the program puts them into memory that it shares (a memfd, named as
// /proc/PID/fd/N), and a request says what is where. Bytes that are read come as the answer's body.
//
//	begin    a folder for an attempt to save a step, or why it could not be published
//	write    boxes that lie in shared memory: data objects and a sheet in the attempt's folder
//	publish  the index that names them all: parts and the commit object (ckpt.PublishHanded)
//	abort    delete what an attempt wrote
//	open     what a published checkpoint holds
//	read     boxes and values of it, verified
//	file     a record of one of its files, or its index, verified
//	list     what is published
//
// docs/protocol.md has the messages. Nothing here knows of ranks that wait for each other: the program's own ranks agree on the
// attempt, and the one that publishes finds in the store what the others have written.
package intake
