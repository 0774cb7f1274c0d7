// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"fmt"
	"runtime"

	"golang.org/x/sync/errgroup"

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
	loss, err := castParts(out, to, p, from)
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

// castParts casts by as many goroutines as there are processors: one alone is slower than a disk.
func castParts(dst []byte, to string, src []byte, from string) (elem.Loss, error) {
	parts := runtime.GOMAXPROCS(0)
	size, wide := phalanx.DTypeSize(from), phalanx.DTypeSize(to)
	count := len(src) / size
	each := (count + parts - 1) / parts
	losses := make([]elem.Loss, parts)
	var group errgroup.Group
	for k := range parts {
		first, end := min(k*each, count), min((k+1)*each, count)
		group.Go(func() (err error) {
			losses[k], err = elem.Cast(dst[first*wide:end*wide], to, src[first*size:end*size], from)
			return err
		})
	}
	err := group.Wait()
	var all elem.Loss
	for _, l := range losses {
		all.Beyond += l.Beyond
	}
	return all, err
}
