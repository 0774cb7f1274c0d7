// SPDX-License-Identifier: Apache-2.0

package membership

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"phalanx"
)

// MaxMetaBytes bounds what a member may gossip about itself: 64 bytes on the wire, one of which is Gossip's own.
// Larger metadata fills packets, and anything over a packet never travels.
const MaxMetaBytes = 63

// Role bits of a daemon. They are hints: the log says who votes.
type Role uint8

// The bits of Role.
const (
	RoleVoter   Role = 1 << iota // votes in the log
	RoleStandby                  // a caught-up non-voter
	RoleTrainer                  // supervises a training process
)

// Meta is what a daemon tells about itself in gossip: enough to dial it.
type Meta struct {
	Incarnation phalanx.Incarnation
	DaemonPort  uint16 // the daemon's one TCP and UDP port
	Roles       Role
}

// The encoding is version, incarnation (8 bytes, big endian), port (2), roles (1). Later fields are appended; a reader
// ignores what it does not know, and refuses only another version.
const (
	metaVersion = 1
	metaBytes   = 12
)

// ErrMeta is returned for metadata that cannot be read.
var ErrMeta = errors.New("unreadable gossip metadata")

// Encode returns the 12 bytes that DecodeMeta reads.
func (m Meta) Encode() []byte {
	b := make([]byte, 0, metaBytes)
	b = append(b, metaVersion)
	b = binary.BigEndian.AppendUint64(b, uint64(m.Incarnation))
	b = binary.BigEndian.AppendUint16(b, m.DaemonPort)
	return append(b, byte(m.Roles))
}

// DecodeMeta reads what Encode wrote, here or in a later release. Errors wrap ErrMeta.
func DecodeMeta(b []byte) (Meta, error) {
	switch {
	case len(b) < metaBytes || len(b) > MaxMetaBytes:
		return Meta{}, fmt.Errorf("decode %d bytes, want %d to %d: %w", len(b), metaBytes, MaxMetaBytes, ErrMeta)
	case b[0] != metaVersion:
		return Meta{}, fmt.Errorf("decode version %d, want %d: %w", b[0], metaVersion, ErrMeta)
	}
	return Meta{
		Incarnation: phalanx.Incarnation(binary.BigEndian.Uint64(b[1:])),
		DaemonPort:  binary.BigEndian.Uint16(b[9:]),
		Roles:       Role(b[11]),
	}, nil
}

// maxNameBytes bounds a gossip name: a member id, a dot, 20 digits, a dash and a nonce.
const maxNameBytes = phalanx.MaxMemberIDBytes + 64

// GossipName returns the name of one daemon process in gossip: HOST/INDEX.INCARNATION-NONCE. The nonce is fresh for each
// process, because a daemon that died beside a living trainer comes back under the same incarnation, and memberlist
// refuses a name that returns at another address, or with an older counter, for as long as it remembers the dead one.
func GossipName(of phalanx.Incarnate, nonce string) string { return of.String() + "-" + nonce }

// ParseGossipName reads what GossipName made.
func ParseGossipName(name string) (of phalanx.Incarnate, nonce string, err error) {
	bad := func(what string) (phalanx.Incarnate, string, error) {
		return phalanx.Incarnate{}, "", fmt.Errorf("gossip name %q: %s", name, what)
	}
	// The host may hold dots and dashes, so the rest is read from the last slash on.
	slash := strings.LastIndexByte(name, '/')
	if slash < 0 || len(name) > maxNameBytes {
		return bad("want HOST/INDEX.INCARNATION-NONCE")
	}
	index, rest, ok := strings.Cut(name[slash+1:], ".")
	if !ok {
		return bad("no incarnation")
	}
	count, nonce, ok := strings.Cut(rest, "-")
	if !ok || nonce == "" {
		return bad("no nonce")
	}
	incarnation, err := strconv.ParseUint(count, 10, 64)
	if err != nil {
		return bad("incarnation is not a number")
	}
	id := phalanx.MemberID(name[:slash+1] + index)
	if !id.Valid() {
		return bad("no valid member id")
	}
	return phalanx.Incarnate{Member: id, Incarnation: phalanx.Incarnation(incarnation)}, nonce, nil
}
