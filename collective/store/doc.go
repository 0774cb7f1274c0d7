// SPDX-License-Identifier: Apache-2.0

// Package store is the key-value store over which the process groups of a framework find each other: PyTorch's TCPStore,
// spoken as its clients speak it and served by a daemon instead of by rank 0.
//
//	Request   one request, as bytes and as a value
//	Machine   what the requests mean: a pure machine of values, queues and waits
//	Server    connections in front of one Machine; it ends with the generation that it belongs to
//
// A Machine belongs to one generation and is thrown away with it, so nothing of an older world is ever found in it. The protocol
// has no word for an error: what cannot be answered ends the connection, and so does the end of the generation, which wakes every
// waiting client at once. Deadlines are the clients' own: a client that has waited long enough cancels its wait.
package store
