// SPDX-License-Identifier: Apache-2.0

package host

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync"

	"phalanx"
)

// A frame is what daemons of different hosts send each other: a header of 64 bytes, little-endian, and a payload.
//
//	 0 u32 magic     4 u8 type   5 u8 group   6 u16 node
//	 8 u32 epoch    12 u32 source rank       16 u64 number
//	24 u32 seq      28 u32 stream            32 u64 chunk
//	40 u64 word     48 u32 payload bytes     52 zero       56 u64 id of a group that was made
//
// The payload holds elements as they lie in memory. There is no checksum: the connection is TLS.
const (
	frameMagic = 0x46584850 // PHXF
	headBytes  = 64
	// chunkElements is the unit of progress: 128 KiB of float32, 256 KiB of the 64-bit types, 64 KiB of the 16-bit ones.
	chunkElements = 32768
	maxPayload    = chunkElements * 8
)

// frameType says what a frame is for.
type frameType uint8

const (
	// framePost: the source has entered operation seq; word is its signature.
	framePost frameType = 1
	// frameData: a chunk of a stream. node is the index of the source's input buffer.
	frameData frameType = 2
	// frameAck: the source has taken chunk (a count) chunks of the stream.
	frameAck frameType = 3
	// frameFail: the source gave operation seq up.
	frameFail frameType = 4
	// frameOffer: the source sends a message, its seq-th: word is the tag, chunk says which one of the group and tag it is, node and
	// stream are the high and the low part of its size in bytes. See courier.go.
	frameOffer frameType = 5
	// frameTake: the source wants chunk (a count) chunks of message seq of the receiver; with stream 1 it wants none: the sizes differ.
	frameTake frameType = 6
	// frameMessage: chunk number chunk of message seq of the source.
	frameMessage frameType = 7
)

type header struct {
	typ     frameType
	group   uint8
	id      uint64
	node    uint16
	gen     phalanx.Generation
	source  uint32
	seq     uint32
	stream  uint32
	chunk   uint64
	word    uint64
	payload uint32
}

// frame is a header with its payload in a pooled buffer.
type frame struct {
	header
	buf *[headBytes + maxPayload]byte // nil when the frame has no payload
}

func (f *frame) data() []byte {
	if f.buf == nil {
		return nil
	}
	return f.buf[headBytes:][:f.payload]
}

var framePool = sync.Pool{New: func() any { return new([headBytes + maxPayload]byte) }}

// free returns the buffer. The frame must not be used afterwards.
func (f *frame) free() {
	if f.buf != nil {
		framePool.Put(f.buf)
		f.buf = nil
	}
}

// newData returns a frame with room for a payload; its type is frameData or frameMessage.
func newData(h header, bytes int) *frame {
	h.payload = uint32(bytes)
	f := &frame{header: h}
	if bytes > 0 {
		f.buf = framePool.Get().(*[headBytes + maxPayload]byte)
	}
	return f
}

func (h *header) encode(b []byte) {
	clear(b[:headBytes])
	le := binary.LittleEndian
	le.PutUint32(b[0:], frameMagic)
	b[4], b[5] = byte(h.typ), h.group
	le.PutUint16(b[6:], h.node)
	le.PutUint32(b[8:], h.gen.Epoch)
	le.PutUint32(b[12:], h.source)
	le.PutUint64(b[16:], h.gen.Number)
	le.PutUint32(b[24:], h.seq)
	le.PutUint32(b[28:], h.stream)
	le.PutUint64(b[32:], h.chunk)
	le.PutUint64(b[40:], h.word)
	le.PutUint32(b[48:], h.payload)
	le.PutUint64(b[56:], h.id)
}

// parseHeader reads what encode wrote and refuses what no peer of this version sends.
func parseHeader(b []byte) (header, error) {
	le := binary.LittleEndian
	if len(b) < headBytes {
		return header{}, fmt.Errorf("frame header of %d bytes, want %d", len(b), headBytes)
	}
	if m := le.Uint32(b); m != frameMagic {
		return header{}, fmt.Errorf("frame magic %08x, want %08x: the other end is no collective of this version", m, uint32(frameMagic))
	}
	h := header{
		typ: frameType(b[4]), group: b[5], node: le.Uint16(b[6:]),
		gen:    phalanx.Generation{Epoch: le.Uint32(b[8:]), Number: le.Uint64(b[16:])},
		source: le.Uint32(b[12:]), seq: le.Uint32(b[24:]), stream: le.Uint32(b[28:]),
		chunk: le.Uint64(b[32:]), word: le.Uint64(b[40:]), payload: le.Uint32(b[48:]), id: le.Uint64(b[56:]),
	}
	switch {
	case h.typ < framePost || h.typ > frameMessage:
		return header{}, fmt.Errorf("frame type %d is unknown", h.typ)
	case h.group > groupMade || (h.group == groupMade) != (h.id != 0):
		return header{}, fmt.Errorf("frame for group %d with id %#x", h.group, h.id)
	case h.typ >= frameOffer && h.id == 0:
		return header{}, fmt.Errorf("frame type %d for a group of the step", h.typ)
	case b[52]|b[53]|b[54]|b[55] != 0:
		return header{}, errors.New("frame header with bytes beyond its fields")
	case h.payload > maxPayload || h.payload != 0 && h.typ != frameData && h.typ != frameMessage:
		return header{}, fmt.Errorf("frame type %d with %d bytes of payload", h.typ, h.payload)
	}
	return h, nil
}
