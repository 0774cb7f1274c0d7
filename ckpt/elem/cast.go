// SPDX-License-Identifier: Apache-2.0

package elem

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"

	"phalanx"
)

// ErrCast: there is no cast between two dtypes.
var ErrCast = errors.New("cast is not possible")

// Loss counts the elements that a cast could not keep near their value. The zero value lost nothing.
type Loss struct {
	// Beyond is how many numbers were finite and lie outside of what the other dtype has: beyond its largest one, or, for
	// f8_e8m0fnu, zero or negative.
	Beyond int64
}

// kind says what numbers a dtype has.
type kind int

const (
	none kind = iota
	boolean
	integer
	real
	complexes
)

func kindOf(dtype string) kind {
	switch {
	case phalanx.DTypeSize(dtype) == 0:
		return none
	case dtype == "bool":
		return boolean
	case dtype[0] == 'i' || dtype[0] == 'u':
		return integer
	case dtype[0] == 'c':
		return complexes
	}
	return real
}

// CanCast returns nil when Cast can turn elements of one dtype into those of another: into itself, and from bool, integers,
// floats and complex numbers to one that comes later in this list or is of the same kind. Otherwise ErrCast with the reason.
func CanCast(from, to string) error {
	a, b := kindOf(from), kindOf(to)
	switch {
	case a == none || b == none:
		return fmt.Errorf("from %.40q to %.40q: %w: unknown dtype, want one of %v", from, to, ErrCast, phalanx.DTypes())
	case a > b:
		return fmt.Errorf("from %s to %s: %w: it would drop a part of each number", from, to, ErrCast)
	}
	return nil
}

// step is how many elements are cast at a time.
const step = 1024

// Cast turns elements of the dtype from in src into elements of the dtype to in dst, which has room for exactly as many. dst
// and src must not overlap, unless the dtypes are the same.
func Cast(dst []byte, to string, src []byte, from string) (Loss, error) {
	var loss Loss
	if err := CanCast(from, to); err != nil {
		return loss, err
	}
	fromSize, toSize := phalanx.DTypeSize(from), phalanx.DTypeSize(to)
	if len(src)%fromSize != 0 || len(dst) != len(src)/fromSize*toSize {
		return loss, fmt.Errorf("cast: %d bytes of %s into %d bytes of %s", len(src), from, len(dst), to)
	}
	if from == to {
		copy(dst, src)
		return loss, nil
	}
	values := Values(to)
	var numbers, pairs [2 * step]float64
	for len(src) > 0 {
		n := min(step, len(src)/fromSize)
		a, b := src[:n*fromSize], dst[:n*toSize]
		src, dst = src[n*fromSize:], dst[n*toSize:]
		if kindOf(to) <= integer {
			loss.Beyond += toIntegers(b, to, a, from)
			continue
		}
		x := numbers[:n*Values(from)]
		if err := Decode(x, from, a); err != nil {
			return loss, err
		}
		if to != "f64" && to != "c128" && fromSize == 8 && kindOf(from) == integer {
			roundToOdd(x, a, from)
		}
		if values == 2 && Values(from) == 1 {
			for i, v := range x {
				pairs[2*i], pairs[2*i+1] = v, 0
			}
			x = pairs[:2*n]
		}
		loss.Beyond += encode(b, part(to), x)
	}
	return loss, nil
}

// toIntegers casts bools and integers to integers.
func toIntegers(dst []byte, to string, src []byte, from string) (lost int64) {
	fromSize, toSize := phalanx.DTypeSize(from), phalanx.DTypeSize(to)
	width := uint(8 * toSize)
	for i := range len(src) / fromSize {
		var magnitude uint64
		negative := false
		switch {
		case from == "bool":
			magnitude = uint64(count(src[i] != 0))
		case from[0] == 'i':
			v := signed(src, i, fromSize)
			magnitude, negative = uint64(v), v < 0
			if negative {
				magnitude = -magnitude
			}
		default:
			magnitude = unsigned(src, i, fromSize)
		}
		most := uint64(1)<<width - 1 // 2^64 - 1 for 64 bits, too
		if to[0] == 'i' {
			most >>= 1
			if negative {
				most++
			}
		} else if negative {
			most = 0
		}
		if magnitude > most {
			magnitude = most
			lost++
		}
		if negative {
			magnitude = -magnitude
		}
		putInteger(dst[i*toSize:], magnitude, toSize)
	}
	return lost
}

func putInteger(dst []byte, v uint64, size int) {
	switch size {
	case 1:
		dst[0] = byte(v)
	case 2:
		binary.LittleEndian.PutUint16(dst, uint16(v))
	case 4:
		binary.LittleEndian.PutUint32(dst, uint32(v))
	default:
		binary.LittleEndian.PutUint64(dst, v)
	}
}

// roundToOdd makes float64 of 64-bit integers so that rounding them again, to fewer digits, gives what rounding once would: digits
// that do not fit leave a 1 in the last place.
func roundToOdd(dst []float64, src []byte, from string) {
	for i := range dst {
		magnitude, negative := unsigned(src, i, 8), false
		if from == "i64" && int64(magnitude) < 0 {
			magnitude, negative = -magnitude, true
		}
		if drop := 64 - bits.LeadingZeros64(magnitude) - 53; drop > 0 {
			rest := magnitude & (1<<uint(drop) - 1)
			magnitude &^= rest
			if rest != 0 {
				magnitude |= 1 << uint(drop)
			}
		}
		dst[i] = float64(magnitude)
		if negative {
			dst[i] = -dst[i]
		}
	}
}
