// SPDX-License-Identifier: Apache-2.0

package safetensors

import (
	"errors"
	"fmt"
	"strings"
	"testing"
)

// TestFilesThatAreMissing: names that say of how many files they are make a folder without an index one that is known not to be whole.
func TestFilesThatAreMissing(t *testing.T) {
	series := func(first, end, n int) (names []string) {
		for i := first; i < end; i++ {
			names = append(names, ModelName(i, n))
		}
		return names
	}
	for _, c := range []struct {
		names   []string
		missing string // "": whole
	}{
		{series(1, 13, 12), ""},
		{series(1, 9, 12), "model-00009-of-00012.safetensors"},
		{series(3, 13, 12), "model-00001-of-00012.safetensors"},
		{series(0, 5, 5), ""}, // a few count from 0
		{series(0, 4, 5), "model-00004-of-00005.safetensors"},
		{append(series(1, 3, 2), series(1, 3, 3)...), "model-00003-of-00003.safetensors"},
		{[]string{"a-1-of-999999999.safetensors"}, "a-2-of-999999999.safetensors"},
		{[]string{"%d-1-of-2.safetensors"}, "%d-2-of-2.safetensors"},
		{[]string{"a.safetensors", "b.safetensors"}, ""},
		{[]string{ShardName(1, 1, 2), ShardName(2, 2, 2)}, ""},
		{[]string{ShardName(1, 1, 2), ShardName(2, 1, 2)}, "shard-*-model-00002-of-00002.safetensors"},
	} {
		err := complete(c.names)
		if c.missing == "" && err != nil || c.missing != "" && (!errors.Is(err, ErrIncomplete) || !strings.Contains(err.Error(), fmt.Sprintf("%q", c.missing))) {
			t.Errorf("%q: %v, want %q missing", c.names, err, c.missing)
		}
	}
	if !Counted(series(1, 3, 4)) || Counted([]string{ModelName(1, 2), "b.safetensors"}) {
		t.Error("names that say how many files there are")
	}
}
