// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"net"
	"time"
)

// Network is what a daemon's packets travel on: the machine's, or simulated wires.
type Network interface {
	Listen(addr string) (net.Listener, error) // TCP; the listener's address is a *net.TCPAddr
	Dial(ctx context.Context, addr string) (net.Conn, error)
	ListenPacket(addr string) (net.PacketConn, error) // UDP
}

// machineNetwork is TCP and UDP of this machine. It ignores proxies.
type machineNetwork struct{}

func (machineNetwork) Listen(addr string) (net.Listener, error) { return net.Listen("tcp", addr) }

func (machineNetwork) Dial(ctx context.Context, addr string) (net.Conn, error) {
	return (&net.Dialer{KeepAlive: 5 * time.Second}).DialContext(ctx, "tcp", addr)
}

func (machineNetwork) ListenPacket(addr string) (net.PacketConn, error) {
	return net.ListenPacket("udp", addr)
}
