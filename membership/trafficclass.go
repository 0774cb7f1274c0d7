// SPDX-License-Identifier: Apache-2.0

package membership

import (
	"fmt"
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// SetTrafficClass marks every later packet of a connection, or of a packet socket, with a DSCP: IP_TOS, or IPV6_TCLASS. A
// connection may be a *tls.Conn or another wrapper with NetConn.
func SetTrafficClass(socket any, dscp uint8) error {
	mark := func(fd int) error {
		class := int(dscp) << 2 // the two bits below are the kernel's, for ECN
		family, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DOMAIN)
		if err != nil {
			return err
		}
		if family == unix.AF_INET6 {
			if err := unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_TCLASS, class); err != nil {
				return err
			}
			if only, err := unix.GetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY); err != nil || only != 0 {
				return err
			}
		}
		return unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_TOS, class)
	}
	var err error
	switch s := socket.(type) {
	case syscall.Conn: // UDP, or plain TCP
		err = onRaw(s, mark)
	case net.Conn:
		err = onSocket(s, mark)
	default:
		err = errNoSocket
	}
	if err != nil {
		return fmt.Errorf("set the traffic class of a socket: %w", err)
	}
	return nil
}

func onRaw(s syscall.Conn, do func(fd int) error) error {
	raw, err := s.SyscallConn()
	if err != nil {
		return err
	}
	var inner error
	if err := raw.Control(func(fd uintptr) { inner = do(int(fd)) }); err != nil {
		return err
	}
	return inner
}
