// SPDX-License-Identifier: Apache-2.0

package store

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
)

// Client names a connection.
type Client uint64

// Reply is what a client is to be sent.
type Reply struct {
	To    Client
	Bytes []byte
}

var (
	// ErrMissing says that a client asked for a key that is not there without waiting for it.
	ErrMissing = errors.New("no such key")
	// ErrNumber says that a value which a client adds to is not a number.
	ErrNumber = errors.New("the value is no number")
	// ErrFull says that the store holds as many bytes as it may.
	ErrFull = errors.New("the store is full")
)

// Answers of one byte.
const (
	ready    = 0 // to Check, Wait and Barrier
	notReady = 1 // to Check
	canceled = 1 // to CancelWait
)

// perEntry is what a key, or an element of a queue, is taken to cost beside its bytes.
const perEntry = 128

// wait is what a client waits for: keys that are not there, or the others of a barrier.
type wait struct {
	missing map[string]bool
	barrier string
}

// Machine is the state of one store. It does nothing by itself and is not safe for several goroutines.
type Machine struct {
	limit    int64 // bytes
	used     int64
	values   map[string][]byte
	queues   map[string][][]byte
	waits    map[Client]*wait
	waiting  map[string]map[Client]bool // who waits for a key
	barriers map[string][]Client        // who has come, in order
}

// NewMachine returns an empty store that holds at most limit bytes.
func NewMachine(limit int64) *Machine {
	return &Machine{limit: limit, values: map[string][]byte{}, queues: map[string][][]byte{}, waits: map[Client]*wait{}, waiting: map[string]map[Client]bool{},
		barriers: map[string][]Client{}}
}

// Waits reports whether a client's last Wait or Barrier is still to be answered.
func (m *Machine) Waits(c Client) bool { return m.waits[c] != nil }

// Do carries out a request of a client that does not wait, or its CancelWait. The replies are for this client and, when the
// request was what others waited for, for those. A request that fails changes nothing.
func (m *Machine) Do(c Client, q Request) ([]Reply, error) {
	if m.waits[c] != nil && q.Op != CancelWait {
		return nil, fmt.Errorf("%#02x while waiting: %w", q.Op, ErrProtocol)
	}
	answer := func(b []byte) ([]Reply, error) { return []Reply{{c, b}}, nil }
	number := func(n int) ([]Reply, error) { return answer(binary.LittleEndian.AppendUint64(nil, uint64(n))) }
	switch q.Op {
	case Validate:
		if uint32(q.Number) != magic {
			return nil, fmt.Errorf("magic %#x: %w", q.Number, ErrProtocol)
		}
		return nil, nil
	case Ping:
		return answer(binary.LittleEndian.AppendUint32(nil, uint32(q.Number)))
	case Set:
		return m.set(q.Keys, q.Values)
	case MultiSet:
		return m.set(q.Keys, q.Values)
	case Append:
		return m.set(q.Keys, [][]byte{slices.Concat(m.values[q.Keys[0]], q.Values[0])})
	case CompareSet:
		return m.compareSet(c, q)
	case Add:
		return m.add(c, q)
	case Get, MultiGet:
		var out []byte
		for _, k := range q.Keys {
			v, ok := m.values[k]
			if !ok {
				return nil, fmt.Errorf("get %q: %w", k, ErrMissing)
			}
			out = appendBytes(out, v)
		}
		return answer(out)
	case Check:
		if len(m.missing(q.Keys)) > 0 {
			return answer([]byte{notReady})
		}
		return answer([]byte{ready})
	case Wait:
		return m.wait(c, q.Keys)
	case Barrier:
		return m.arrive(c, q)
	case CancelWait:
		m.leave(c)
		return answer([]byte{canceled})
	case NumKeys:
		return number(len(m.values))
	case Delete:
		old, ok := m.values[q.Keys[0]]
		if !ok {
			return number(0)
		}
		m.used -= cost(q.Keys[0], old)
		delete(m.values, q.Keys[0])
		return number(1)
	case QueuePush:
		return m.push(q)
	case QueuePop:
		return m.pop(c, q.Keys[0])
	case QueueLen:
		return number(len(m.queues[q.Keys[0]]))
	case ListKeys:
		keys := slices.Sorted(maps.Keys(m.values))
		out := binary.LittleEndian.AppendUint64(nil, uint64(len(keys)))
		for _, k := range keys {
			out = appendBytes(out, k)
		}
		return answer(out)
	}
	return nil, fmt.Errorf("operation %#02x: %w", q.Op, ErrProtocol)
}

// Gone forgets a client whose connection has ended. What it has stored stays.
func (m *Machine) Gone(c Client) { m.leave(c) }

func cost(key string, value []byte) int64 { return int64(len(key)+len(value)) + perEntry }

// room checks that the store may grow by some bytes.
func (m *Machine) room(more int64) error {
	if m.used+more > m.limit {
		return fmt.Errorf("%d bytes more than the %d in use: %w of %d bytes", more, m.used, ErrFull, m.limit)
	}
	return nil
}

// set stores values and wakes whoever waited for the keys.
func (m *Machine) set(keys []string, values [][]byte) ([]Reply, error) {
	var more int64
	for i, k := range keys { // a key that comes twice is counted twice: a bound, not a sum
		if more += cost(k, values[i]); m.values[k] != nil {
			more -= cost(k, m.values[k])
		}
	}
	if err := m.room(more); err != nil {
		return nil, err
	}
	var out []Reply
	for i, k := range keys {
		if old, ok := m.values[k]; ok {
			m.used -= cost(k, old)
		}
		v := values[i]
		if v == nil {
			v = []byte{}
		}
		m.values[k] = v
		m.used += cost(k, v)
		out = append(out, m.wake(k, len(m.waiting[k]))...)
	}
	return out, nil
}

func (m *Machine) compareSet(c Client, q Request) ([]Reply, error) {
	now, ok := m.values[q.Keys[0]]
	expected, desired := q.Values[0], q.Values[1]
	switch {
	case ok && !bytes.Equal(now, expected):
		return []Reply{{c, appendBytes(nil, now)}}, nil
	case !ok && len(expected) > 0: // as PyTorch's server: nothing is set
		return []Reply{{c, appendBytes(nil, expected)}}, nil
	}
	out, err := m.set(q.Keys, [][]byte{desired})
	if err != nil {
		return nil, err
	}
	return append(out, Reply{c, appendBytes(nil, desired)}), nil
}

func (m *Machine) add(c Client, q Request) ([]Reply, error) {
	var sum int64
	if now, ok := m.values[q.Keys[0]]; ok {
		n, err := strconv.ParseInt(string(now), 10, 64)
		if err != nil {
			return nil, fmt.Errorf("add to %q: %w", q.Keys[0], ErrNumber)
		}
		sum = n
	}
	sum += q.Number
	out, err := m.set(q.Keys, [][]byte{strconv.AppendInt(nil, sum, 10)})
	if err != nil {
		return nil, err
	}
	return append(out, Reply{c, binary.LittleEndian.AppendUint64(nil, uint64(sum))}), nil
}

// missing are the keys that neither a value nor an element of a queue is there for.
func (m *Machine) missing(keys []string) map[string]bool {
	out := map[string]bool{}
	for _, k := range keys {
		if _, ok := m.values[k]; !ok && len(m.queues[k]) == 0 {
			out[k] = true
		}
	}
	return out
}

func (m *Machine) wait(c Client, keys []string) ([]Reply, error) {
	missing := m.missing(keys)
	if len(missing) == 0 {
		return []Reply{{c, []byte{ready}}}, nil
	}
	m.waits[c] = &wait{missing: missing}
	for k := range missing {
		if m.waiting[k] == nil {
			m.waiting[k] = map[Client]bool{}
		}
		m.waiting[k][c] = true
	}
	return nil, nil
}

// wake tells at most n clients that wait for a key that it is there, the longest connected first, and answers those that
// wait for nothing else.
func (m *Machine) wake(key string, n int) (out []Reply) {
	for _, c := range slices.Sorted(maps.Keys(m.waiting[key])) {
		if n--; n < 0 {
			break
		}
		m.unwait(c, key)
		w := m.waits[c]
		if delete(w.missing, key); len(w.missing) == 0 {
			delete(m.waits, c)
			out = append(out, Reply{c, []byte{ready}})
		}
	}
	return out
}

func (m *Machine) unwait(c Client, key string) {
	if delete(m.waiting[key], c); len(m.waiting[key]) == 0 {
		delete(m.waiting, key)
	}
}

// leave ends the wait of a client, if it has one.
func (m *Machine) leave(c Client) {
	w := m.waits[c]
	if w == nil {
		return
	}
	delete(m.waits, c)
	for k := range w.missing {
		m.unwait(c, k)
	}
	if w.missing != nil {
		return
	}
	here := slices.DeleteFunc(m.barriers[w.barrier], func(o Client) bool { return o == c })
	if m.barriers[w.barrier] = here; len(here) == 0 {
		delete(m.barriers, w.barrier)
	}
}

// arrive counts a client at a barrier. The last one frees all, and the key may be used again.
func (m *Machine) arrive(c Client, q Request) ([]Reply, error) {
	key := q.Keys[0]
	here := append(m.barriers[key], c)
	if int64(len(here)) < q.Number {
		m.barriers[key] = here
		m.waits[c] = &wait{barrier: key}
		return nil, nil
	}
	delete(m.barriers, key)
	var out []Reply
	for _, o := range here {
		delete(m.waits, o)
		out = append(out, Reply{o, []byte{ready}})
	}
	return out, nil
}

func (m *Machine) push(q Request) ([]Reply, error) {
	key, v := q.Keys[0], q.Values[0]
	if err := m.room(cost(key, v)); err != nil {
		return nil, err
	}
	m.used += cost(key, v)
	m.queues[key] = append(m.queues[key], v)
	return m.wake(key, 1), nil // one element is for one client
}

func (m *Machine) pop(c Client, key string) ([]Reply, error) {
	all := m.queues[key]
	out := binary.LittleEndian.AppendUint64(nil, uint64(len(all)))
	if len(all) == 0 {
		return []Reply{{c, out}}, nil
	}
	m.used -= cost(key, all[0])
	out = appendBytes(out, all[0])
	if len(all) == 1 {
		delete(m.queues, key)
	} else {
		m.queues[key] = all[1:]
	}
	return []Reply{{c, out}}, nil
}
