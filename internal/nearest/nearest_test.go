// SPDX-License-Identifier: Apache-2.0

package nearest

import (
	"strings"
	"testing"
)

func TestName(t *testing.T) {
	known := []string{"nproc", "join", "hang-timeout", "start-timeout", "keep", "job"}
	for name, want := range map[string]string{"nproc": "nproc", "nprocs": "nproc", "jion": "join", "hang-timout": "hang-timeout", "xyzzy": "", "": ""} {
		if got := Name(name, known); got != want {
			t.Errorf("nearest to %q is %q, want %q", name, got, want)
		}
	}
	if d := edits("kitten", "sitting"); d != 3 {
		t.Errorf("edits = %d, want 3", d)
	}
	if d := edits("jion", "join"); d != 1 {
		t.Errorf("a swap is %d edits, want 1", d)
	}
	if s := Suggest("colour_of_the_sky", known); !strings.HasPrefix(s, "known are nproc, ") {
		t.Error(s)
	}
}
