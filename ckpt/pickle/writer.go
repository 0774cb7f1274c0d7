// SPDX-License-Identifier: Apache-2.0

package pickle

import (
	"encoding/binary"
	"math"
)

// Writer writes a pickle of protocol 4, opcode by opcode: for pickles of many values, for which Encode would want them all
// at once. The methods put values on Python's stack and take them from it, as their comments say. Strings and globals that
// were written before are taken from the memo. The zero Writer is ready.
type Writer struct {
	b       []byte
	strings map[string]int
	globals map[Name]int
	memo    int // how many values have numbers
}

// groupSize is how many values one opcode adds at most to a list or dict: as in Python, so that its stack stays small.
const groupSize = 2000

// Finish ends the pickle, whose value is the one on the stack, and returns it.
func (w *Writer) Finish() []byte {
	b := make([]byte, 0, len(w.b)+12)
	b = append(b, 0x80, 4, 0x95) // one frame
	b = binary.LittleEndian.AppendUint64(b, uint64(len(w.b)+1))
	return append(append(b, w.b...), '.')
}

// None puts None.
func (w *Writer) None() { w.b = append(w.b, 'N') }

// Bool puts a bool.
func (w *Writer) Bool(v bool) {
	op := byte(0x89)
	if v {
		op = 0x88
	}
	w.b = append(w.b, op)
}

// Int puts an int.
func (w *Writer) Int(n int64) { w.b = appendInt(w.b, n) }

// Float puts a float.
func (w *Writer) Float(v float64) {
	w.b = binary.BigEndian.AppendUint64(append(w.b, 'G'), math.Float64bits(v))
}

// String puts a str.
func (w *Writer) String(s string) {
	if n, ok := w.strings[s]; ok {
		w.Get(n)
		return
	}
	w.text(0x8c, 'X', 0x8d, s)
	if w.strings == nil {
		w.strings = map[string]int{}
	}
	w.strings[s] = w.Memoize()
}

// Bytes puts bytes.
func (w *Writer) Bytes(b []byte) { w.text('C', 'B', 0x8e, string(b)) }

// text writes bytes with a length of one, four or eight bytes.
func (w *Writer) text(op1, op4, op8 byte, s string) {
	switch n := len(s); {
	case n < 1<<8:
		w.b = append(w.b, op1, byte(n))
	case int64(n) < 1<<32:
		w.b = binary.LittleEndian.AppendUint32(append(w.b, op4), uint32(n))
	default:
		w.b = binary.LittleEndian.AppendUint64(append(w.b, op8), uint64(n))
	}
	w.b = append(w.b, s...)
}

// Global puts a class or function.
func (w *Writer) Global(module, name string) {
	key := Name{module, name}
	if n, ok := w.globals[key]; ok {
		w.Get(n)
		return
	}
	w.String(module)
	w.String(name)
	w.b = append(w.b, 0x93)
	if w.globals == nil {
		w.globals = map[Name]int{}
	}
	w.globals[key] = w.Memoize()
}

// Memoize numbers the value on top of the stack, for Get.
func (w *Writer) Memoize() int {
	w.b = append(w.b, 0x94)
	w.memo++
	return w.memo - 1
}

// Get puts a value that was numbered.
func (w *Writer) Get(n int) {
	if n < 1<<8 {
		w.b = append(w.b, 'h', byte(n))
		return
	}
	w.b = binary.LittleEndian.AppendUint32(append(w.b, 'j'), uint32(n))
}

// Mark puts the mark from which on MarkedTuple, Appends and SetItems take values.
func (w *Writer) Mark() { w.b = append(w.b, '(') }

// Tuple takes n values, at most three, and puts a tuple of them.
func (w *Writer) Tuple(n int) {
	if n == 0 {
		w.b = append(w.b, ')')
		return
	}
	w.b = append(w.b, tupleOf(n)...)
}

// MarkedTuple takes the values from the mark on and puts a tuple of them.
func (w *Writer) MarkedTuple() { w.b = append(w.b, 't') }

// Ints puts a tuple of ints.
func (w *Writer) Ints(n []int) {
	if len(n) > 3 {
		w.Mark()
	}
	for _, v := range n {
		w.Int(int64(v))
	}
	w.Tuple(len(n))
}

// List puts an empty list.
func (w *Writer) List() { w.b = append(w.b, ']') }

// Dict puts an empty dict.
func (w *Writer) Dict() { w.b = append(w.b, '}') }

// Appends takes the values from the mark on and appends them to the list below it.
func (w *Writer) Appends() { w.b = append(w.b, 'e') }

// SetItems takes keys and values in turn from the mark on and sets them in the dict below it.
func (w *Writer) SetItems() { w.b = append(w.b, 'u') }

// New takes a class and a tuple of arguments and puts a new object (NEWOBJ).
func (w *Writer) New() { w.b = append(w.b, 0x81) }

// Call takes a function and a tuple of arguments and puts its result (REDUCE).
func (w *Writer) Call() { w.b = append(w.b, 'R') }

// Build takes a state and sets it in the object below it.
func (w *Writer) Build() { w.b = append(w.b, 'b') }
