// SPDX-License-Identifier: Apache-2.0

// Package netns makes hosts out of network namespaces, so that jobs over several hosts can be tried on one machine.
//
// Each host has an interface and an address of its own, and its own /dev/shm; a bridge in a further namespace connects them.
// Nothing of it is seen in the namespace of the caller. A host's cable can be pulled and put back. Making namespaces takes
// root and the ip command of iproute2.
package netns
