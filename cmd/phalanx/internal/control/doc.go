// SPDX-License-Identifier: Apache-2.0

// Package control finds the living daemons of a host and talks to them over their unix sockets.
//
// A daemon is named by its pid and its start time together, as DIR/members/I/daemon.json has them: a pid alone may belong to
// somebody else by now.
package control
