// SPDX-License-Identifier: Apache-2.0

package pickle

import (
	"bytes"
	"fmt"
	"slices"
	"unicode/utf8"
)

// Document is what a pickle says.
type Document struct {
	Value any
	// Foreign are the globals that are named and not known, each once, in the order in which they come.
	Foreign []*Global
	// Length is how many bytes the pickle has. More may follow: that is for the caller to judge.
	Length int64
}

// machine is the stack machine of a pickle, building data.
type machine struct {
	data   []byte
	pos    int // of the next byte to be read
	op     int // of the opcode being run
	policy Policy
	limits Limits

	stack   []any
	marks   []int   // heights of the stack at which a MARK lies
	memo    []*page // by number, pageSize in each: growing one slice would leave its copies behind
	next    uint64  // one more than the highest number
	globals map[Name]*Global
	foreign []*Global
	memory  int64 // charged so far
}

// page is a part of the memo. Values are nil where nothing was put and none{} for None.
type page [pageSize]any

const pageSize = 256

type none struct{}

// What values cost in memory, never less than they take: see Limits.Memory.
const (
	costNumber = 16
	costText   = 32
	costNode   = 48
	costObject = 144
	costItem   = 16 // an interface value in a slice
)

// slots is what a slice with room for so many values costs. To grow a long one takes the old one and the new one at a time.
func slots(capacity int) int64 {
	const long = 1 << 16
	return costItem * int64(capacity+max(0, capacity-long))
}

// room charges what a slice has grown by, of values of several slots each.
func (m *machine) room(before, after, each int) { m.memory += slots(each*after) - slots(each*before) }

// maxStack bounds the stack and the marks on it. Picklers put no more than a thousand values of a list or dict there at a time,
// and all values of a tuple.
const maxStack = 1 << 20

// Decode reads one pickle from the beginning of data. Errors are *SyntaxError, *UnknownGlobalError, or wrap ErrLimit.
func Decode(data []byte, p Policy, l Limits) (*Document, error) {
	l = l.withDefaults(int64(len(data)))
	if int64(len(data)) > l.Bytes {
		return nil, fmt.Errorf("%w: it has %d bytes, %d are allowed", ErrLimit, len(data), l.Bytes)
	}
	m := &machine{data: data, policy: p, limits: l, globals: map[Name]*Global{}}
	value, err := m.run()
	if err != nil {
		return nil, err
	}
	if err := measure(value, l); err != nil {
		return nil, err
	}
	return &Document{Value: value, Foreign: m.foreign, Length: int64(m.pos)}, nil
}

// run executes opcodes until STOP. Every opcode has at least one byte, so it ends.
func (m *machine) run() (any, error) {
	for {
		m.op = m.pos
		b, err := m.take(1)
		if err != nil {
			return nil, err
		}
		if b[0] == '.' {
			if len(m.stack) != 1 || len(m.marks) != 0 {
				return nil, m.syntax("the end comes with %d values and %d marks on the stack, not one value", len(m.stack), len(m.marks))
			}
			return m.stack[0], nil
		}
		step := opcodes[b[0]]
		if step == nil {
			return nil, m.refuse(b[0])
		}
		if err := step(m); err != nil {
			return nil, err
		}
		if len(m.stack) > maxStack || len(m.marks) > maxStack {
			return nil, fmt.Errorf("%w: at byte %d more than %d values wait on its stack", ErrLimit, m.op, maxStack)
		}
		if m.memory > m.limits.Memory {
			return nil, fmt.Errorf("%w: at byte %d its values have more than %d bytes", ErrLimit, m.op, m.limits.Memory)
		}
	}
}

// refuse explains why an opcode is not run.
func (m *machine) refuse(op byte) error {
	switch op {
	case 'i', 'o':
		return m.syntax("objects of classes of Python 2 (opcode %q) are not read", op)
	case 0x82, 0x83, 0x84:
		return m.syntax("extension codes (opcode %#x) are not read: what they mean is not in the file", op)
	case 0x97, 0x98:
		return m.syntax("buffers outside of the pickle (opcode %#x) are not read: they are not in the file", op)
	case 'P', 'Q':
		return m.syntax("persistent ids (opcode %q) are not read here", op)
	}
	return m.syntax("there is no opcode %#x", op)
}

func (m *machine) syntax(format string, args ...any) error {
	return &SyntaxError{Offset: int64(m.op), What: fmt.Sprintf(format, args...)}
}

// take returns the next n bytes of the pickle.
func (m *machine) take(n int) ([]byte, error) {
	if n < 0 || n > len(m.data)-m.pos {
		return nil, m.syntax("%d bytes are wanted and %d are left: it is cut short", n, len(m.data)-m.pos)
	}
	b := m.data[m.pos : m.pos+n]
	m.pos += n
	return b, nil
}

// number reads an unsigned little-endian number of n bytes, n at most 8.
func (m *machine) number(n int) (uint64, error) {
	b, err := m.take(n)
	var v uint64
	for i, c := range b {
		v |= uint64(c) << (8 * i)
	}
	return v, err
}

// counted reads a length of n bytes and as many bytes.
func (m *machine) counted(n int) ([]byte, error) {
	length, err := m.number(n)
	if err != nil {
		return nil, err
	}
	if length > uint64(len(m.data)) {
		return nil, m.syntax("%d bytes are wanted and %d are left: it is cut short", length, len(m.data)-m.pos)
	}
	return m.take(int(length))
}

// line reads up to the next newline.
func (m *machine) line() ([]byte, error) {
	n := bytes.IndexByte(m.data[m.pos:], '\n')
	if n < 0 {
		return nil, m.syntax("a line without an end: it is cut short")
	}
	b := m.data[m.pos : m.pos+n]
	m.pos += n + 1
	return b, nil
}

// push puts a value on the stack. The stack counts towards memory by what it once was, not by what passed over it.
func (m *machine) push(v any, cost int64) {
	before := cap(m.stack)
	m.stack = append(m.stack, v)
	m.memory += cost
	m.room(before, cap(m.stack), 1)
}

func (m *machine) pushText(b []byte) error {
	if !utf8.Valid(b) {
		return m.syntax("a string that is not UTF-8")
	}
	m.push(string(b), costText+int64(len(b)))
	return nil
}

// pop takes the topmost value. What lies below the topmost mark cannot be taken.
func (m *machine) pop() (any, error) {
	bottom := 0
	if len(m.marks) > 0 {
		bottom = m.marks[len(m.marks)-1]
	}
	if len(m.stack) <= bottom {
		return nil, m.syntax("a value is wanted and the stack is empty")
	}
	v := m.stack[len(m.stack)-1]
	m.stack[len(m.stack)-1] = nil
	m.stack = m.stack[:len(m.stack)-1]
	return v, nil
}

// popN takes the n topmost values, in the order in which they were put.
func (m *machine) popN(n int) ([]any, error) {
	items := make([]any, n)
	for i := n - 1; i >= 0; i-- {
		v, err := m.pop()
		if err != nil {
			return nil, err
		}
		items[i] = v
	}
	return items, nil
}

// top is the topmost value, which stays.
func (m *machine) top() (any, error) {
	v, err := m.pop()
	if err == nil {
		m.stack = append(m.stack, v)
	}
	return v, err
}

// popMark takes all values above the topmost mark, and the mark.
func (m *machine) popMark() ([]any, error) {
	if len(m.marks) == 0 {
		return nil, m.syntax("a mark is wanted and there is none")
	}
	at := m.marks[len(m.marks)-1]
	m.marks = m.marks[:len(m.marks)-1]
	items := slices.Clone(m.stack[at:])
	clear(m.stack[at:])
	m.stack = m.stack[:at]
	return items, nil
}

// put remembers the topmost value under a number.
func (m *machine) put(n uint64) error {
	v, err := m.top()
	if err != nil {
		return err
	}
	at := n / pageSize
	if have := uint64(len(m.memo)); at >= have {
		if at-have > uint64(m.limits.Memory)/costItem {
			return fmt.Errorf("%w: at byte %d it numbers a value %d", ErrLimit, m.op, n)
		}
		before := cap(m.memo)
		m.memo = append(m.memo, make([]*page, at-have+1)...)
		m.room(before, cap(m.memo), 1)
	}
	if m.memo[at] == nil {
		if m.memory += costItem * pageSize; m.memory > m.limits.Memory {
			return fmt.Errorf("%w: at byte %d it numbers a value %d", ErrLimit, m.op, n)
		}
		m.memo[at] = new(page)
	}
	if v == nil {
		v = none{}
	}
	m.memo[at][n%pageSize] = v
	m.next = max(m.next, n+1)
	return nil
}

// get puts the value with a number on the stack again.
func (m *machine) get(n uint64) error {
	if at := n / pageSize; at < uint64(len(m.memo)) && m.memo[at] != nil {
		if v := m.memo[at][n%pageSize]; v == (any)(none{}) {
			m.push(nil, 0)
			return nil
		} else if v != nil {
			m.push(v, 0)
			return nil
		}
	}
	return m.syntax("there is no value with the number %d", n)
}

// global returns the node of a global, the same one each time, if the policy lets it through.
func (m *machine) global(module, name string) error {
	if !utf8.ValidString(module) || !utf8.ValidString(name) {
		return m.syntax("the name of a global is not UTF-8")
	}
	key := Name{module, name}
	g := m.globals[key]
	if g == nil {
		known := slices.Contains(m.policy.Known, key) || m.policy.KnownIn != nil && m.policy.KnownIn(module, name) || isBuiltin(module, name)
		dangerous := !known && Dangerous(module, name)
		if !known && (dangerous || !m.policy.Foreign) {
			return &UnknownGlobalError{Module: module, Name: name, Offset: int64(m.op), Dangerous: dangerous}
		}
		g = &Global{Module: module, Name: name, Offset: int64(m.op), Known: known}
		m.globals[key] = g
		if !known {
			m.foreign = append(m.foreign, g)
		}
		m.memory += costObject + int64(len(module)+len(name))
	}
	m.push(g, 0)
	return nil
}
