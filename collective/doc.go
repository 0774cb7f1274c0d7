// SPDX-License-Identifier: Apache-2.0

// Package collective is the parent of the backends that reduce gradients: [phalanx/collective/host] runs in the daemons,
// over shared memory inside a host and TCP between hosts. It holds no code of its own, so that a program that needs one
// backend does not link the others.
package collective
