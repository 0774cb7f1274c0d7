// SPDX-License-Identifier: Apache-2.0

package supervise

import (
	"fmt"
	"testing"
)

func TestNotes(t *testing.T) {
	var n notes
	for i, c := range []struct {
		now         []string
		begun, over string
	}{
		{[]string{"the last 1 saves failed: full"}, "[]", "[]"}, // may pass
		{[]string{"the last 2 saves failed: full", "waits"}, "[the last 2 saves failed: full]", "[]"},
		{[]string{"the last 3 saves failed: full"}, "[]", "[]"},
		{[]string{"the last 3 saves failed: denied"}, "[]", "[]"}, // another
		{[]string{"the last 4 saves failed: denied"}, "[the last 4 saves failed: denied]", "[the last 2 saves failed: full]"},
		{nil, "[]", "[]"},
		{nil, "[]", "[the last 4 saves failed: denied]"},
		{nil, "[]", "[]"},
		{[]string{"the last 1 saves failed: full"}, "[]", "[]"}, // again
		{[]string{"the last 1 saves failed: full"}, "[the last 1 saves failed: full]", "[]"},
	} {
		begun, over := n.heard(c.now)
		if fmt.Sprint(begun) != c.begun || fmt.Sprint(over) != c.over {
			t.Errorf("answer %d: told %v and over %v, want %s and %s", i, begun, over, c.begun, c.over)
		}
	}
}
