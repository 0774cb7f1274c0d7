// SPDX-License-Identifier: Apache-2.0

package pickle

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/big"
	"slices"
)

// opcodes are what the machine runs, by their byte. STOP is run by the loop itself; what is nil is refused.
var opcodes = [256]func(*machine) error{
	0x80: (*machine).protocol,
	0x95: (*machine).frame,
	'(': func(m *machine) error {
		before := cap(m.marks)
		m.marks = append(m.marks, len(m.stack))
		m.memory += 8 * int64(cap(m.marks)-before)
		return nil
	},
	'0': (*machine).discard,
	'1': func(m *machine) error { _, err := m.popMark(); return err },
	'2': func(m *machine) error { v, err := m.top(); m.pushIf(v, err); return err },

	'N':  func(m *machine) error { m.push(nil, 0); return nil },
	0x88: func(m *machine) error { m.push(true, 0); return nil },
	0x89: func(m *machine) error { m.push(false, 0); return nil },
	'K':  func(m *machine) error { return m.unsigned(1) },
	'M':  func(m *machine) error { return m.unsigned(2) },
	'J':  (*machine).signed,
	0x8a: func(m *machine) error { return m.long(1) },
	0x8b: func(m *machine) error { return m.long(4) },
	'G':  (*machine).float,

	0x8c: func(m *machine) error { return m.unicode(1) },
	'X':  func(m *machine) error { return m.unicode(4) },
	0x8d: func(m *machine) error { return m.unicode(8) },
	'U':  func(m *machine) error { return m.oldString(1) },
	'T':  func(m *machine) error { return m.oldString(4) },
	'C':  func(m *machine) error { return m.bytes(1) },
	'B':  func(m *machine) error { return m.bytes(4) },
	0x8e: func(m *machine) error { return m.bytes(8) },
	0x96: func(m *machine) error { return m.bytes(8) }, // a bytearray

	')':  func(m *machine) error { m.push(&Tuple{}, costNode); return nil },
	0x85: func(m *machine) error { return m.tuple(1) },
	0x86: func(m *machine) error { return m.tuple(2) },
	0x87: func(m *machine) error { return m.tuple(3) },
	't':  func(m *machine) error { return m.marked(func(v []any) any { return &Tuple{Items: v} }) },
	']':  func(m *machine) error { m.push(&List{}, costNode); return nil },
	'l':  func(m *machine) error { return m.marked(func(v []any) any { return &List{Items: v} }) },
	'}':  func(m *machine) error { m.push(&Dict{}, costNode); return nil },
	'd':  (*machine).dict,
	0x8f: func(m *machine) error { m.push(&Set{}, costNode); return nil },
	0x91: func(m *machine) error { return m.marked(func(v []any) any { return &Set{Items: v, Frozen: true} }) },
	'a':  func(m *machine) error { v, err := m.popN(1); return m.extend(v, err) },
	'e':  func(m *machine) error { v, err := m.popMark(); return m.extend(v, err) },
	0x90: func(m *machine) error { v, err := m.popMark(); return m.addItems(v, err) },
	's':  func(m *machine) error { v, err := m.popN(2); return m.setItems(v, err) },
	'u':  func(m *machine) error { v, err := m.popMark(); return m.setItems(v, err) },

	'q':  func(m *machine) error { return m.numbered(1, m.put) },
	'r':  func(m *machine) error { return m.numbered(4, m.put) },
	0x94: func(m *machine) error { return m.put(m.next) },
	'h':  func(m *machine) error { return m.numbered(1, m.get) },
	'j':  func(m *machine) error { return m.numbered(4, m.get) },

	'c':  (*machine).globalText,
	0x93: (*machine).globalStack,
	'R':  func(m *machine) error { return m.call(false, 2) },
	0x81: func(m *machine) error { return m.call(true, 2) },
	0x92: func(m *machine) error { return m.call(true, 3) },
	'b':  (*machine).build,
	'Q':  (*machine).persistent,

	'I': (*machine).intText,
	'L': (*machine).longText,
	'F': (*machine).floatText,
	'S': (*machine).stringText,
	'V': (*machine).unicodeText,
	'p': func(m *machine) error { return m.numberText(m.put) },
	'g': func(m *machine) error { return m.numberText(m.get) },
	'P': (*machine).persistentText,
}

func (m *machine) pushIf(v any, err error) {
	if err == nil {
		m.push(v, 0)
	}
}

func (m *machine) protocol() error {
	b, err := m.take(1)
	if err == nil && b[0] > 5 {
		return m.syntax("protocol %d; 0 to 5 are known", b[0])
	}
	return err
}

// frame only says how much of a stream Python may read at once.
func (m *machine) frame() error {
	n, err := m.number(8)
	if err == nil && n > uint64(len(m.data)-m.pos) {
		return m.syntax("a frame of %d bytes, and %d are left: it is cut short", n, len(m.data)-m.pos)
	}
	return err
}

// discard drops the topmost value, or the topmost mark when nothing lies above it.
func (m *machine) discard() error {
	if n := len(m.marks); n > 0 && m.marks[n-1] == len(m.stack) {
		m.marks = m.marks[:n-1]
		return nil
	}
	_, err := m.pop()
	return err
}

func (m *machine) unsigned(n int) error {
	v, err := m.number(n)
	if err == nil {
		m.push(int64(v), costNumber)
	}
	return err
}

func (m *machine) signed() error {
	v, err := m.number(4)
	if err == nil {
		m.push(int64(int32(uint32(v))), costNumber)
	}
	return err
}

// maxLong bounds the bytes of an integer: no state holds larger ones, and reading them takes more than linear time.
const maxLong = 1024

// long reads an integer of any length in two's complement, little-endian.
func (m *machine) long(n int) error {
	b, err := m.counted(n)
	if err != nil {
		return err
	}
	if len(b) > maxLong {
		return fmt.Errorf("%w: at byte %d it has an integer of %d bytes", ErrLimit, m.op, len(b))
	}
	big8 := make([]byte, len(b))
	for i, c := range b {
		big8[len(b)-1-i] = c
	}
	v := new(big.Int).SetBytes(big8)
	if len(b) > 0 && b[len(b)-1] >= 0x80 {
		v.Sub(v, new(big.Int).Lsh(big.NewInt(1), uint(8*len(b))))
	}
	m.pushBig(v)
	return nil
}

func (m *machine) pushBig(v *big.Int) {
	if v.IsInt64() {
		m.push(v.Int64(), costNumber)
		return
	}
	m.push(v, costNode+int64(len(v.Bits())*8))
}

func (m *machine) float() error {
	b, err := m.take(8)
	if err == nil {
		m.push(math.Float64frombits(binary.BigEndian.Uint64(b)), costNumber)
	}
	return err
}

func (m *machine) unicode(n int) error {
	b, err := m.counted(n)
	if err != nil {
		return err
	}
	return m.pushText(b)
}

// oldString reads a string of Python 2, which is text when it is ASCII and bytes otherwise.
func (m *machine) oldString(n int) error {
	b, err := m.counted(n)
	if err == nil {
		m.pushOldString(b)
	}
	return err
}

func (m *machine) pushOldString(b []byte) {
	for _, c := range b {
		if c >= 0x80 {
			m.push(Bytes(append([]byte{}, b...)), costText+int64(len(b)))
			return
		}
	}
	m.push(string(b), costText+int64(len(b)))
}

func (m *machine) bytes(n int) error {
	b, err := m.counted(n)
	if err == nil {
		m.push(Bytes(append([]byte{}, b...)), costText+int64(len(b)))
	}
	return err
}

func (m *machine) tuple(n int) error {
	items, err := m.popN(n)
	if err == nil {
		m.push(&Tuple{Items: items}, costNode+costItem*int64(n))
	}
	return err
}

func (m *machine) marked(node func([]any) any) error {
	items, err := m.popMark()
	if err == nil {
		m.push(node(items), costNode+costItem*int64(len(items)))
	}
	return err
}

func (m *machine) dict() error {
	items, err := m.popMark()
	if err != nil {
		return err
	}
	m.push(&Dict{}, costNode)
	return m.setItems(items, nil)
}

// extend appends to the list, or the object, on top of the stack.
func (m *machine) extend(items []any, err error) error {
	if err != nil {
		return err
	}
	on, err := m.top()
	if err != nil {
		return err
	}
	var to *[]any
	switch on := on.(type) {
	case *List:
		to = &on.Items
	case *Object:
		to = &on.Items
	default:
		return m.syntax("values are appended to %s", Describe(on))
	}
	before := cap(*to)
	*to = append(*to, items...)
	m.room(before, cap(*to), 1)
	return nil
}

func (m *machine) addItems(items []any, err error) error {
	if err != nil {
		return err
	}
	on, err := m.top()
	if err != nil {
		return err
	}
	set, ok := on.(*Set)
	if !ok || set.Frozen {
		return m.syntax("values are added to %s", Describe(on))
	}
	before := cap(set.Items)
	set.Items = append(set.Items, items...)
	m.room(before, cap(set.Items), 1)
	return nil
}

// setItems adds pairs to the dict, or the object, on top of the stack.
func (m *machine) setItems(items []any, err error) error {
	if err != nil {
		return err
	}
	on, err := m.top()
	if err != nil {
		return err
	}
	if len(items)%2 != 0 {
		return m.syntax("a key without a value")
	}
	var pairs *[]Pair
	switch on := on.(type) {
	case *Dict:
		pairs = &on.Pairs
	case *Object:
		pairs = &on.Pairs
	default:
		return m.syntax("keys are set in %s", Describe(on))
	}
	before := cap(*pairs)
	*pairs = slices.Grow(*pairs, len(items)/2)
	m.room(before, cap(*pairs), 2)
	for i := 0; i < len(items); i += 2 {
		*pairs = append(*pairs, Pair{items[i], items[i+1]})
	}
	return nil
}

func (m *machine) numbered(n int, then func(uint64) error) error {
	v, err := m.number(n)
	if err != nil {
		return err
	}
	return then(v)
}

func (m *machine) globalText() error {
	module, err := m.line()
	if err != nil {
		return err
	}
	name, err := m.line()
	if err != nil {
		return err
	}
	return m.global(string(module), string(name))
}

func (m *machine) globalStack() error {
	v, err := m.popN(2)
	if err != nil {
		return err
	}
	module, ok := v[0].(string)
	name, ok2 := v[1].(string)
	if !ok || !ok2 {
		return m.syntax("a global is named by %s and %s", Describe(v[0]), Describe(v[1]))
	}
	return m.global(module, name)
}

// call makes the record of a call: of a function (REDUCE), or of a class's __new__ with positional arguments, and with
// keyword arguments as a third value.
func (m *machine) call(isNew bool, n int) error {
	v, err := m.popN(n)
	if err != nil {
		return err
	}
	switch v[0].(type) {
	case *Global, *Object: // what a call returns may be called, in objects that are looked past
	default:
		return m.syntax("%s is called", Describe(v[0]))
	}
	if _, ok := v[0].(*Object); ok && !m.policy.Foreign {
		return m.syntax("%s is called", Describe(v[0]))
	}
	o := &Object{Class: v[0], Args: v[1], New: isNew, Offset: int64(m.op)}
	if n == 3 {
		o.Args = &Tuple{Items: v[1:]}
	}
	m.push(builtin(o))
	return nil
}

func (m *machine) build() error {
	state, err := m.popN(1)
	if err != nil {
		return err
	}
	on, err := m.top()
	if err != nil {
		return err
	}
	o, ok := on.(*Object)
	switch {
	case !ok:
		return m.syntax("the state of %s is set", Describe(on))
	case o.HasState:
		return m.syntax("the state of %s is set twice", Describe(on))
	}
	o.State, o.HasState = state[0], true
	return nil
}

func (m *machine) persistent() error {
	if !m.policy.PersistentIDs {
		return m.refuse('Q')
	}
	v, err := m.popN(1)
	if err == nil {
		m.push(&PersistentID{ID: v[0]}, costNode)
	}
	return err
}
