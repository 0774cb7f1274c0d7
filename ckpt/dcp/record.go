// SPDX-License-Identifier: Apache-2.0

package dcp

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math"

	"phalanx"
	"phalanx/ckpt/pickle"
)

// PayloadAt is where the payload of a record begins, counted from the record's first byte. It is a multiple of 64.
const PayloadAt = 1024

// The members of a record, in the order in which they lie in it.
const (
	nameData    = "archive/data.pkl"
	nameVersion = "archive/version"
	nameOrder   = "archive/byteorder"
	namePayload = "archive/data/0"
)

// What PyTorch wants to read in the two small members: the version of its zip format, and how numbers lie in memory.
const (
	contentVersion = "3\n"
	contentOrder   = "little"
)

// Lengths of the structures of a zip archive, without names and extra fields.
const (
	lenLocal     = 30
	lenCentral   = 46
	lenEnd       = 22
	lenEnd64     = 56
	lenLocator64 = 20
	lenExtra64   = 4 + 2*8 // the extra field with the two sizes of a member in 64 bits
)

// dosDate is 1980-01-01, the zero of the format: zero itself has month 0, which some programs refuse.
const dosDate = 1<<5 | 1

// flagUTF8 says that names are UTF-8, as PyTorch's writer says.
const flagUTF8 = 0x800

// member is one file of the archive, as both its headers describe it.
type member struct {
	name string
	at   int64 // of its local header
	size int64
	crc  uint32
}

// RecordHeader returns the bytes of a record before its payload, exactly PayloadAt of them: what torch.save would have
// written for one contiguous tensor. The dtype is one of phalanx.DTypes, payload the bytes of all elements, crc32 the
// CRC-32 (IEEE) of them. It fails for what is not one tensor (an unknown dtype, a negative size, a payload of another size)
// and for a shape of so many dimensions that its description does not fit: 32 dimensions of any size always do.
func RecordHeader(dtype string, shape []int, payload int64, crc32 uint32) ([]byte, error) {
	members, err := recordMembers(dtype, shape, payload, crc32)
	if err != nil {
		return nil, err
	}
	data, err := pickle.EncodeTensor(dtype, shape)
	if err != nil {
		return nil, fmt.Errorf("dcp: record of a %s tensor of shape %v: %w", dtype, shape, err)
	}
	b := make([]byte, 0, PayloadAt)
	for i, content := range []string{string(data), contentVersion, contentOrder} {
		b = appendLocal(b, members[i], nil)
		b = append(b, content...)
	}
	last := members[3]
	var extra []byte
	if large(last.size) {
		extra = appendExtra64(extra, last.size)
	}
	// "FB" is the extra field that PyTorch fills up with; here it ends at the payload. It needs 4 bytes at least.
	room := PayloadAt - len(b) - lenLocal - len(last.name) - len(extra) - 4
	if room < 0 {
		return nil, fmt.Errorf("dcp: the shape %v has too many dimensions for a record: its description is %d bytes too long; reshape the tensor before it is saved", shape, -room)
	}
	extra = append(extra, 'F', 'B')
	extra = binary.LittleEndian.AppendUint16(extra, uint16(room))
	extra = append(extra, make([]byte, room)...)
	return appendLocal(b, last, extra), nil
}

// RecordTrailer returns the bytes of a record after its payload, TrailerLen(payload) of them, for the arguments of
// RecordHeader. For arguments that RecordHeader refuses it returns nil.
func RecordTrailer(dtype string, shape []int, payload int64, crc32 uint32) []byte {
	members, err := recordMembers(dtype, shape, payload, crc32)
	if err != nil {
		return nil
	}
	b := make([]byte, 0, TrailerLen(payload))
	for _, m := range members {
		b = appendCentral(b, m)
	}
	directory := int64(len(b))
	begin := PayloadAt + payload
	if large(payload) {
		b = appendEnd64(b, len(members), begin, directory)
	}
	return appendEnd(b, len(members), begin, directory)
}

// TrailerLen is the length in bytes of the trailer of a record with a payload of so many bytes. It depends on nothing else.
func TrailerLen(payload int64) int64 {
	n := int64(4*lenCentral + len(nameData) + len(nameVersion) + len(nameOrder) + len(namePayload) + lenEnd)
	if large(payload) {
		n += lenExtra64 + lenEnd64 + lenLocator64
	}
	return n
}

// RecordLen is the length in bytes of a whole record with a payload of so many bytes.
func RecordLen(payload int64) int64 { return PayloadAt + payload + TrailerLen(payload) }

// recordMembers describes the four members of a record, and checks what it is asked for.
func recordMembers(dtype string, shape []int, payload int64, crc uint32) ([]member, error) {
	want, ok := tensorBytes(dtype, shape)
	if !ok {
		return nil, fmt.Errorf("dcp: no record can hold a tensor of dtype %q and shape %v: dtypes are %v, sizes are not negative and the whole fits in 63 bits", dtype, shape, phalanx.DTypes())
	}
	if payload != want {
		return nil, fmt.Errorf("dcp: a %s tensor of shape %v has %d bytes, not %d", dtype, shape, want, payload)
	}
	data, err := pickle.EncodeTensor(dtype, shape)
	if err != nil {
		return nil, fmt.Errorf("dcp: record of a %s tensor of shape %v: %w", dtype, shape, err)
	}
	members := []member{
		{name: nameData, size: int64(len(data)), crc: crc32.ChecksumIEEE(data)},
		{name: nameVersion, size: int64(len(contentVersion)), crc: crc32.ChecksumIEEE([]byte(contentVersion))},
		{name: nameOrder, size: int64(len(contentOrder)), crc: crc32.ChecksumIEEE([]byte(contentOrder))},
		{name: namePayload, size: payload, crc: crc},
	}
	for i := 1; i < len(members); i++ {
		before := members[i-1]
		members[i].at = before.at + lenLocal + int64(len(before.name)) + before.size
	}
	return members, nil
}

// tensorBytes is the size of a tensor, and whether there can be such a tensor.
func tensorBytes(dtype string, shape []int) (int64, bool) {
	n := int64(phalanx.DTypeSize(dtype))
	if n == 0 {
		return 0, false
	}
	empty := false
	for _, d := range shape {
		if d < 0 {
			return 0, false
		}
		empty = empty || d == 0
	}
	if empty {
		return 0, true
	}
	for _, d := range shape {
		if n > math.MaxInt64/4/int64(d) { // a quarter: a record around it must fit as well
			return 0, false
		}
		n *= int64(d)
	}
	return n, true
}

// large reports whether a member of this size, and what follows it, is described in 64 bits. Below, a record has 32 bits
// only, with room for what surrounds the payload, so that the simplest reader of zip archives reads it.
func large(size int64) bool { return size >= math.MaxUint32-(1<<16) }

func appendLocal(b []byte, m member, extra []byte) []byte {
	b = append(b, "PK\x03\x04"...)
	b = binary.LittleEndian.AppendUint16(b, needs(m.size))
	b = appendMember(b, m)
	b = binary.LittleEndian.AppendUint16(b, uint16(len(extra)))
	b = append(b, m.name...)
	return append(b, extra...)
}

func appendCentral(b []byte, m member) []byte {
	var extra []byte
	if large(m.size) {
		extra = appendExtra64(extra, m.size)
	}
	b = append(b, "PK\x01\x02"...)
	b = binary.LittleEndian.AppendUint16(b, needs(m.size)) // made by
	b = binary.LittleEndian.AppendUint16(b, needs(m.size))
	b = appendMember(b, m)
	b = binary.LittleEndian.AppendUint16(b, uint16(len(extra)))
	b = append(b, make([]byte, 2+2+2+4)...) // comment, disk, attributes
	b = binary.LittleEndian.AppendUint32(b, uint32(m.at))
	b = append(b, m.name...)
	return append(b, extra...)
}

// appendMember adds the fields that both headers of a member have, from its flags to the length of its name.
func appendMember(b []byte, m member) []byte {
	size := uint32(math.MaxUint32)
	if !large(m.size) {
		size = uint32(m.size)
	}
	b = binary.LittleEndian.AppendUint16(b, flagUTF8)
	b = append(b, 0, 0, 0, 0) // stored; midnight
	b = binary.LittleEndian.AppendUint16(b, dosDate)
	b = binary.LittleEndian.AppendUint32(b, m.crc)
	b = binary.LittleEndian.AppendUint32(b, size)
	b = binary.LittleEndian.AppendUint32(b, size)
	return binary.LittleEndian.AppendUint16(b, uint16(len(m.name)))
}

// needs is the version of the zip format that a member needs: 4.5 has sizes of 64 bits.
func needs(size int64) uint16 {
	if large(size) {
		return 45
	}
	return 20
}

func appendExtra64(b []byte, size int64) []byte {
	b = binary.LittleEndian.AppendUint16(b, 1)
	b = binary.LittleEndian.AppendUint16(b, lenExtra64-4)
	b = binary.LittleEndian.AppendUint64(b, uint64(size))
	return binary.LittleEndian.AppendUint64(b, uint64(size))
}

// appendEnd64 adds the end of a directory whose place needs 64 bits, and the locator that leads to it.
func appendEnd64(b []byte, members int, begin, length int64) []byte {
	b = append(b, "PK\x06\x06"...)
	b = binary.LittleEndian.AppendUint64(b, lenEnd64-12)
	b = binary.LittleEndian.AppendUint16(b, 45)
	b = binary.LittleEndian.AppendUint16(b, 45)
	b = append(b, make([]byte, 8)...) // disks
	for range 2 {
		b = binary.LittleEndian.AppendUint64(b, uint64(members))
	}
	b = binary.LittleEndian.AppendUint64(b, uint64(length))
	b = binary.LittleEndian.AppendUint64(b, uint64(begin))
	b = append(b, "PK\x06\x07"...)
	b = append(b, 0, 0, 0, 0)
	b = binary.LittleEndian.AppendUint64(b, uint64(begin+length))
	return binary.LittleEndian.AppendUint32(b, 1)
}

func appendEnd(b []byte, members int, begin, length int64) []byte {
	at := uint32(math.MaxUint32) // look in the end of 64 bits
	if !large(begin - PayloadAt) {
		at = uint32(begin)
	}
	b = append(b, "PK\x05\x06"...)
	b = append(b, 0, 0, 0, 0) // disks
	for range 2 {
		b = binary.LittleEndian.AppendUint16(b, uint16(members))
	}
	b = binary.LittleEndian.AppendUint32(b, uint32(length))
	b = binary.LittleEndian.AppendUint32(b, at)
	return append(b, 0, 0)
}
