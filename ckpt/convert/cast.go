// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"fmt"

	"phalanx"
	"phalanx/ckpt/elem"
)

// caster casts the elements of tensors and counts what the new dtype cannot hold.
type caster struct {
	buffer []byte
	beyond []Beyond
}

// Beyond is a tensor with finite numbers that are too large for the dtype that they were cast to; they became infinite or NaN.
type Beyond struct {
	Name  string `json:"name"`
	Count int64  `json:"count"`
}

// cast returns the elements as another dtype. They are valid until the next call.
func (c *caster) cast(name, to, from string, p []byte) ([]byte, error) {
	n := len(p) / phalanx.DTypeSize(from) * phalanx.DTypeSize(to)
	if cap(c.buffer) < n {
		c.buffer = make([]byte, n)
	}
	out := c.buffer[:n]
	loss, err := elem.Cast(out, to, p, from)
	if err != nil {
		return nil, fmt.Errorf("tensor %.80q: %w", name, err)
	}
	if loss.Beyond > 0 {
		if k := len(c.beyond) - 1; k >= 0 && c.beyond[k].Name == name {
			c.beyond[k].Count += loss.Beyond
		} else {
			c.beyond = append(c.beyond, Beyond{name, loss.Beyond})
		}
	}
	return out, nil
}
