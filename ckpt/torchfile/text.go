// SPDX-License-Identifier: Apache-2.0

package torchfile

import (
	"fmt"
	"math"
	"math/big"
	"strconv"
	"strings"

	"phalanx/ckpt/pickle"
)

// Text writes a value about as Python prints it, in at most limit bytes and then "…". Tensors and what is not known are named
// in angle brackets.
func Text(value any, limit int) string {
	w := &texter{limit: limit}
	w.value(value)
	s := w.b.String()
	if len(s) > limit {
		s = strings.ToValidUTF8(s[:limit], "") + "…"
	}
	return s
}

// texter stops as soon as it has more than it may give.
type texter struct {
	b     strings.Builder
	limit int
}

func (w *texter) value(v any) {
	if w.b.Len() > w.limit {
		return
	}
	if pairs, ok := dictOf(v); ok {
		w.b.WriteByte('{')
		for i, p := range pairs {
			w.comma(i)
			w.value(p.Key)
			w.b.WriteString(": ")
			w.value(p.Value)
		}
		w.b.WriteByte('}')
		return
	}
	switch v := v.(type) {
	case string:
		w.b.WriteString(strconv.Quote(v[:min(len(v), w.limit+1)]))
	case pickle.Bytes:
		fmt.Fprintf(&w.b, "b%q", string(v[:min(len(v), w.limit+1)]))
	case *pickle.List:
		w.items("[", v.Items, "]")
	case *pickle.Set:
		w.items("{", v.Items, "}")
	case *pickle.Tuple:
		if len(v.Items) == 1 {
			w.items("(", v.Items, ",)")
			return
		}
		w.items("(", v.Items, ")")
	case *pickle.Global:
		w.b.WriteString(v.String())
	default:
		w.plain(v)
	}
}

func (w *texter) plain(v any) {
	if pickle.IsTensor(v) {
		w.b.WriteString("<tensor>")
	} else if text, ok := keyText(v); ok {
		w.b.WriteString(text)
	} else {
		fmt.Fprintf(&w.b, "<%s>", pickle.Describe(v))
	}
}

func (w *texter) items(begin string, items []any, end string) {
	w.b.WriteString(begin)
	for i, item := range items {
		if w.b.Len() > w.limit {
			return
		}
		w.comma(i)
		w.value(item)
	}
	w.b.WriteString(end)
}

func (w *texter) comma(i int) {
	if i > 0 {
		w.b.WriteString(", ")
	}
}

// floatText is Python's repr of a float.
func floatText(f float64) string {
	switch {
	case math.IsInf(f, 1):
		return "inf"
	case math.IsInf(f, -1):
		return "-inf"
	case math.IsNaN(f):
		return "nan"
	case f != 0 && (math.Abs(f) < 1e-4 || math.Abs(f) >= 1e16):
		return strconv.FormatFloat(f, 'e', -1, 64)
	}
	s := strconv.FormatFloat(f, 'f', -1, 64)
	if !strings.Contains(s, ".") {
		s += ".0"
	}
	return s
}

// bigText is the text of a large number, which can take long to make.
func bigText(n *big.Int) string {
	if n.BitLen() > 4096 {
		return fmt.Sprintf("<int of %d bits>", n.BitLen())
	}
	return n.String()
}
