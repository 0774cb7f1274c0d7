// SPDX-License-Identifier: Apache-2.0

// Package node is the peer daemon of one member: the only place where the pure machines of package elastic meet processes,
// memory, network and disk.
//
// One goroutine, the loop, owns the daemon's state. Everything that takes time runs beside it and comes back as an event.
package node
