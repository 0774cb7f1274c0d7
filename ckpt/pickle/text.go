// SPDX-License-Identifier: Apache-2.0

package pickle

import (
	"fmt"
	"math/big"
	"strconv"
	"strings"
)

// The opcodes of protocol 0, which are lines of text.

func (m *machine) intText() error {
	b, err := m.line()
	if err != nil {
		return err
	}
	switch string(b) {
	case "00":
		m.push(false, 0)
		return nil
	case "01":
		m.push(true, 0)
		return nil
	}
	return m.decimal(string(b))
}

func (m *machine) longText() error {
	b, err := m.line()
	if err != nil {
		return err
	}
	return m.decimal(strings.TrimSuffix(string(b), "L"))
}

func (m *machine) decimal(s string) error {
	if len(s) > 2*maxLong {
		return fmt.Errorf("%w: at byte %d it has an integer of %d digits", ErrLimit, m.op, len(s))
	}
	v, ok := new(big.Int).SetString(s, 10)
	if !ok {
		return m.syntax("%q is not an integer", s)
	}
	m.pushBig(v)
	return nil
}

func (m *machine) floatText() error {
	b, err := m.line()
	if err != nil {
		return err
	}
	if len(b) > maxLong {
		return m.syntax("a number of %d characters", len(b))
	}
	v, err := strconv.ParseFloat(string(b), 64)
	if err != nil && v == 0 { // beyond the largest is infinite, as in Python
		return m.syntax("%q is not a number", b)
	}
	m.push(v, costNumber)
	return nil
}

// numberText reads the number of a value in the memo.
func (m *machine) numberText(then func(uint64) error) error {
	b, err := m.line()
	if err != nil {
		return err
	}
	n, err := strconv.ParseUint(string(b), 10, 32)
	if err != nil {
		return m.syntax("%.20q is not the number of a value", b)
	}
	return then(n)
}

// stringText reads a string of Python 2 as its repr wrote it.
func (m *machine) stringText() error {
	b, err := m.line()
	if err != nil {
		return err
	}
	if len(b) < 2 || b[0] != b[len(b)-1] || b[0] != '\'' && b[0] != '"' {
		return m.syntax("a string without quotes")
	}
	b = b[1 : len(b)-1]
	out := make([]byte, 0, len(b))
	for i := 0; i < len(b); i++ {
		if b[i] != '\\' {
			out = append(out, b[i])
			continue
		}
		i++
		if i == len(b) {
			return m.syntax("a string that ends within an escape")
		}
		if b[i] == 'x' {
			v, err := strconv.ParseUint(string(b[min(i+1, len(b)):min(i+3, len(b))]), 16, 8)
			if err != nil || i+3 > len(b) {
				return m.syntax("a string with an escape that is not two hex digits")
			}
			out, i = append(out, byte(v)), i+2
			continue
		}
		at := strings.IndexByte(`\'"nrt`, b[i])
		if at < 0 {
			return m.syntax("a string with the escape \\%c", b[i])
		}
		out = append(out, "\\'\"\n\r\t"[at])
	}
	m.pushOldString(out)
	return nil
}

// unicodeText reads what Python calls raw-unicode-escape: Latin-1, with \uXXXX and \UXXXXXXXX.
func (m *machine) unicodeText() error {
	b, err := m.line()
	if err != nil {
		return err
	}
	var out strings.Builder
	for i := 0; i < len(b); i++ {
		digits := 0
		if b[i] == '\\' && i+1 < len(b) {
			digits = map[byte]int{'u': 4, 'U': 8}[b[i+1]]
		}
		if digits == 0 {
			out.WriteRune(rune(b[i]))
			continue
		}
		v, err := strconv.ParseUint(string(b[i+2:min(i+2+digits, len(b))]), 16, 31)
		if err != nil || i+2+digits > len(b) || v >= 0xd800 && v < 0xe000 || v > 0x10ffff {
			return m.syntax("a string with an escape that is no character")
		}
		out.WriteRune(rune(v))
		i += 1 + digits
	}
	m.push(out.String(), costText+int64(out.Len()))
	return nil
}

func (m *machine) persistentText() error {
	if !m.policy.PersistentIDs {
		return m.refuse('P')
	}
	b, err := m.line()
	if err != nil {
		return err
	}
	if err := m.pushText(b); err != nil {
		return err
	}
	return m.persistent()
}
