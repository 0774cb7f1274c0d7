// SPDX-License-Identifier: Apache-2.0

package settings

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"

	"golang.org/x/sys/unix"

	"phalanx/node"
)

// FindAddress decides which IP the daemons bind, from --bind, --interface and --join. haveKey: a key was given, so that
// others may be let in. Without one nothing but loopback is bound.
func (s *Settings) FindAddress(haveKey bool) error {
	if !haveKey && len(s.Join) > 0 {
		return needsKey("joining another host")
	}
	address, port, err := s.address(haveKey)
	if err != nil {
		return err
	}
	if !haveKey && !address.IsLoopback() {
		return needsKey("listening on " + address.String())
	}
	if s.Advertise != "" {
		if ip, err := netip.ParseAddr(s.Advertise); err != nil || ip.IsUnspecified() {
			return usage("give an IP address that the other hosts can dial", "--advertise %s", s.Advertise)
		}
	} else if address.IsUnspecified() {
		return usage("add --advertise ADDR, the address that the other hosts dial", "--bind %s names no address", s.Bind)
	}
	if err := bindable(address); err != nil {
		return err
	}
	s.Address, s.Port = address.String(), port
	return nil
}

// bindable reports an address that this host does not have, before any daemon stumbles over it.
func bindable(address netip.Addr) error {
	l, err := net.Listen("tcp", netip.AddrPortFrom(address, 0).String())
	if errors.Is(err, unix.EADDRNOTAVAIL) {
		return usage("give an address of this host; `ip -brief address` lists them", "listen on %s: this host has no such address", address)
	}
	if err != nil {
		return nil // what else may be wrong is found by who listens
	}
	return l.Close()
}

func needsKey(what string) error {
	return &node.Problem{Code: node.CodeAuth, Err: fmt.Errorf("%s needs a job key, the same on every host", what),
		Hint: "make one with `(umask 077; phalanx key new > FILE)`, copy it to every host and give --key-file FILE"}
}

func (s *Settings) address(haveKey bool) (netip.Addr, int, error) {
	switch {
	case s.Bind != "" && s.Interface != "":
		return netip.Addr{}, 0, usage("give one of them", "--bind and --interface")
	case s.Bind != "":
		return parseBind(s.Bind)
	case s.Interface != "":
		ip, err := interfaceAddress(s.Interface)
		return ip, 0, err
	case len(s.Join) > 0:
		ip, err := sourceOf(s.Join)
		return ip, 0, err
	case s.MaxHosts > 1 && haveKey:
		// No packet is sent: the kernel only says which source the default route has.
		ip, err := routeSource("192.0.2.1:9")
		if err != nil {
			return ip, 0, usage("give --bind ADDR or --interface I", "no default route tells which address the other hosts reach: %w", err)
		}
		return ip, 0, nil
	}
	return netip.MustParseAddr("127.0.0.1"), 0, nil
}

func parseBind(bind string) (netip.Addr, int, error) {
	if ip, err := netip.ParseAddr(bind); err == nil {
		return ip, 0, nil
	}
	host, portText, err := net.SplitHostPort(bind)
	if err == nil {
		var ip netip.Addr
		var port uint64
		if ip, err = netip.ParseAddr(host); err == nil {
			if port, err = strconv.ParseUint(portText, 10, 16); err == nil {
				return ip, int(port), nil
			}
		}
	}
	return netip.Addr{}, 0, usage("give an IP address, or ADDR:PORT", "--bind %s: %w", bind, err)
}

// interfaceAddress is the first address of an interface that other hosts can dial.
func interfaceAddress(name string) (netip.Addr, error) {
	i, err := net.InterfaceByName(name)
	if err != nil {
		return netip.Addr{}, usage("`ip -brief address` lists the interfaces", "--interface %s: %w", name, err)
	}
	addresses, err := i.Addrs()
	if err != nil {
		return netip.Addr{}, fmt.Errorf("--interface %s: %w", name, err)
	}
	for _, a := range addresses {
		prefix, err := netip.ParsePrefix(a.String())
		if err == nil && !prefix.Addr().IsLinkLocalUnicast() {
			return prefix.Addr(), nil
		}
	}
	return netip.Addr{}, usage("give --bind ADDR", "--interface %s has no address that others can dial", name)
}

// sourceOf is the source address of the route to the first address to join that has one.
func sourceOf(join []string) (netip.Addr, error) {
	var errs []error
	for _, target := range join {
		if _, _, err := net.SplitHostPort(target); err != nil {
			return netip.Addr{}, usage("give HOST:PORT of a member; phalanx status shows it", "--join %s: %w", target, err)
		}
		ip, err := routeSource(target)
		if err == nil {
			return ip, nil
		}
		errs = append(errs, err)
	}
	return netip.Addr{}, usage("check the address, or give --bind ADDR", "no route to join: %w", errors.Join(errs...))
}

func routeSource(target string) (netip.Addr, error) {
	c, err := net.Dial("udp", target)
	if err != nil {
		return netip.Addr{}, err
	}
	defer c.Close()
	at, err := netip.ParseAddrPort(c.LocalAddr().String())
	if err != nil {
		return netip.Addr{}, err
	}
	return at.Addr().Unmap().WithZone(""), nil
}
