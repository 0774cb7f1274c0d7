// SPDX-License-Identifier: Apache-2.0

package store

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// Op is the operation of a request: its first byte on the wire.
type Op uint8

// The operations. Keys and values are a length (u64) and that many bytes, numbers are 64 bits, all little endian. Where an
// answer is named there is exactly one; the others have none.
const (
	Validate   Op = 0x00 // magic (u32): the first request of a connection
	Set        Op = 0x01 // key, value
	CompareSet Op = 0x02 // key, expected, desired; answers the value that is there now
	Get        Op = 0x03 // key; answers the value. A client waits for the key first
	Add        Op = 0x04 // key, i64; answers the sum. The value is decimal text
	Check      Op = 0x05 // count (u64), keys; answers one byte: 0 all are there, 1 not
	Wait       Op = 0x06 // count (u64), keys; answers one byte 0 when all are there
	NumKeys    Op = 0x07 // answers an i64
	Delete     Op = 0x08 // key; answers the number of keys deleted (i64)
	Append     Op = 0x09 // key, value
	MultiGet   Op = 0x0a // count (u64), keys; answers the values
	MultiSet   Op = 0x0b // count (u64), that many times key, value
	CancelWait Op = 0x0c // ends the Wait or Barrier under way, if there is one; answers one byte 1
	Ping       Op = 0x0d // nonce (u32); answers it
	QueuePush  Op = 0x0e // key, value
	QueuePop   Op = 0x0f // key; answers the number of values there were (i64) and, if any, the oldest
	QueueLen   Op = 0x10 // key; answers an i64
	ListKeys   Op = 0x11 // answers a count (i64) and the keys
	Barrier    Op = 0x12 // key, i64; answers one byte 0 when that many clients have come
)

// Bounds of what one request may hold. They are those of PyTorch's own server.
const (
	MaxKeys  = 128 << 10
	MaxBytes = 8 << 20 // of one key or value
)

// magic is what a client of the protocol says first.
const magic = 0x3c85f7ce

// ErrProtocol says that a client does not keep to the protocol. Its connection ends.
var ErrProtocol = errors.New("the client does not speak the store's protocol")

// Request is one request. Which fields count follows from Op.
type Request struct {
	Op     Op
	Keys   []string // one, but for Check, Wait, MultiGet and MultiSet
	Values [][]byte // of Set, Append, QueuePush, MultiSet; expected and desired of CompareSet
	Number int64    // of Add and Barrier; the magic or the nonce
}

// ReadRequest reads one request. An error that is not the connection's wraps ErrProtocol. Memory follows the bytes that have
// come, whatever lengths they claim.
func ReadRequest(r *bufio.Reader) (q Request, err error) {
	first, err := r.ReadByte()
	if err != nil {
		return q, err
	}
	q.Op = Op(first)
	in := reader{from: r}
	switch q.Op {
	case Validate, Ping:
		q.Number = int64(in.u32())
	case NumKeys, CancelWait, ListKeys:
	case Get, Delete, QueuePop, QueueLen:
		q.Keys = in.keys(1)
	case Set, Append, QueuePush:
		q.Keys = in.keys(1)
		q.Values = in.values(1)
	case CompareSet:
		q.Keys = in.keys(1)
		q.Values = in.values(2)
	case Add, Barrier:
		q.Keys = in.keys(1)
		q.Number = int64(in.u64())
	case Check, Wait, MultiGet:
		q.Keys = in.keys(in.count())
	case MultiSet:
		for range in.count() {
			q.Keys = append(q.Keys, in.keys(1)...)
			q.Values = append(q.Values, in.values(1)...)
			if in.err != nil {
				break
			}
		}
	default:
		return q, fmt.Errorf("operation %#02x: %w", first, ErrProtocol)
	}
	if errors.Is(in.err, io.EOF) {
		in.err = io.ErrUnexpectedEOF
	}
	return q, in.err
}

// Append adds the request's bytes to b.
func (q *Request) Append(b []byte) []byte {
	b = append(b, byte(q.Op))
	if q.Op == Validate || q.Op == Ping {
		return binary.LittleEndian.AppendUint32(b, uint32(q.Number))
	}
	if q.Op == Check || q.Op == Wait || q.Op == MultiGet || q.Op == MultiSet {
		b = binary.LittleEndian.AppendUint64(b, uint64(len(q.Keys)))
	}
	for i, k := range q.Keys {
		b = appendBytes(b, k)
		if q.Op == MultiSet {
			b = appendBytes(b, q.Values[i])
		}
	}
	if q.Op != MultiSet { // whose values stand beside their keys
		for _, v := range q.Values {
			b = appendBytes(b, v)
		}
	}
	if q.Op == Add || q.Op == Barrier {
		b = binary.LittleEndian.AppendUint64(b, uint64(q.Number))
	}
	return b
}

func appendBytes[T string | []byte](b []byte, s T) []byte {
	return append(binary.LittleEndian.AppendUint64(b, uint64(len(s))), s...)
}

// reader reads the parts of a request until one fails.
type reader struct {
	from *bufio.Reader
	err  error
}

func (r *reader) fixed(b []byte) []byte {
	if r.err == nil {
		_, r.err = io.ReadFull(r.from, b)
	}
	return b
}

func (r *reader) u32() uint32 { return binary.LittleEndian.Uint32(r.fixed(make([]byte, 4))) }
func (r *reader) u64() uint64 { return binary.LittleEndian.Uint64(r.fixed(make([]byte, 8))) }

func (r *reader) count() int {
	n := r.u64()
	if r.err == nil && n > MaxKeys {
		r.err = fmt.Errorf("%d keys, more than %d: %w", n, MaxKeys, ErrProtocol)
	}
	if r.err != nil {
		return 0
	}
	return int(n)
}

func (r *reader) bytes() []byte {
	n := r.u64()
	if r.err == nil && n > MaxBytes {
		r.err = fmt.Errorf("%d bytes, more than %d: %w", n, MaxBytes, ErrProtocol)
	}
	if r.err != nil {
		return nil
	}
	if n <= 64<<10 {
		return r.fixed(make([]byte, n))
	}
	var b bytes.Buffer // a claimed length is no reason to have that much memory
	_, r.err = io.CopyN(&b, r.from, int64(n))
	return b.Bytes()
}

func (r *reader) keys(n int) (out []string) {
	for range n {
		b := r.bytes()
		if r.err != nil {
			return nil
		}
		out = append(out, string(b))
	}
	return out
}

func (r *reader) values(n int) (out [][]byte) {
	for range n {
		b := r.bytes()
		if r.err != nil {
			return nil
		}
		out = append(out, b)
	}
	return out
}
