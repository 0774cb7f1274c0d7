// SPDX-License-Identifier: Apache-2.0

package node

import (
	"net"
	"strconv"
	"time"

	"phalanx/membership"
)

// hints is what gossip says, nil when gossip is off: a nil channel is never ready.
func (d *Daemon) hints() <-chan membership.Hint {
	if d.gossip == nil {
		return nil
	}
	return d.gossip.Hints()
}

// hinted takes a hint. It evicts nobody: it helps to find addresses, and stands beside other evidence.
func (d *Daemon) hinted(h membership.Hint) {
	who, _, err := membership.ParseGossipName(h.Name)
	if err != nil || who.Member == d.me() {
		return
	}
	switch h.Kind {
	case membership.HintAlive, membership.HintUpdated:
		meta, err := membership.DecodeMeta(h.Meta)
		host, _, splitErr := net.SplitHostPort(h.Addr)
		if err != nil || splitErr != nil || meta.DaemonPort == 0 {
			return
		}
		if _, known := d.roster.peer(who.Member); !known {
			d.roster.learn([]Peer{{Incarnate: who, Host: who.Member.Host(), Addr: net.JoinHostPort(host, strconv.Itoa(int(meta.DaemonPort)))}})
			d.up.hasten()
		}
		d.setGossipDead(who.Member, time.Time{})
	case membership.HintDead, membership.HintLeft:
		d.setGossipDead(who.Member, h.At)
	}
}
