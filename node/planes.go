// SPDX-License-Identifier: Apache-2.0

package node

import "phalanx/membership"

// dscps mark the packets of each protocol, so that a network can give votes precedence over bulk bytes although all share a
// port. Networks that do not look at the mark lose nothing by it. None has 3 or 6 in its upper three bits: switches that are
// set up for RDMA take these for lossless traffic and for congestion notices.
var dscps = map[string]uint8{
	ProtoRaft:   40, // CS5
	ProtoStream: 34, // AF41
	ProtoPeer:   32, // CS4
	ProtoAPI:    18, // AF21
	ProtoGossip: 16, // CS2
	ProtoStore:  20, // AF22
	ProtoData:   10, // AF11

	ProtoTryPeer: 32, // as what they try
	ProtoTryData: 10,
}

// DSCP is the differentiated services code point of the packets of a protocol.
func DSCP(protocol string) uint8 { return dscps[protocol] }

// mark gives the packets of a socket the mark of its protocol. Both ends do it for what they send: the side that dials
// before it says anything, the other one as soon as it knows the protocol.
func (l *Listener) mark(socket any, protocol string) {
	if err := membership.SetTrafficClass(socket, dscps[protocol]); err != nil {
		l.log.Debug("packets are not marked", "protocol", protocol, "error", err) // simulated wires have no sockets
	}
}
