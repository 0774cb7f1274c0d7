// SPDX-License-Identifier: Apache-2.0

package node

import (
	"net"
	"strings"
	"testing"
)

// TestSeedsOfOthers dials a daemon of this job, one with another key, one of another job with the same key, and nobody.
func TestSeedsOfOthers(t *testing.T) {
	key := NewJobKey()
	nobody, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	silent := nobody.Addr().String()
	nobody.Close()
	at := func(k JobKey, job string) *Listener { return listen(t, identity(t, k, job, "h/0")) }
	own := at(key, "job")
	right, otherKey, otherJob := at(key, "job").Addr().String(), at(NewJobKey(), "job").Addr().String(), at(key, "another").Addr().String()

	for _, c := range []struct {
		name string
		join []string
		hint string // "" is no error
	}{
		{"nobody to join", nil, ""},
		{"the right one", []string{right}, ""},
		{"nobody answers yet", []string{silent}, ""},
		{"another key", []string{otherKey}, "--key-file"},
		{"another key, and nobody", []string{silent, otherKey}, "--key-file"},
		{"another job", []string{otherJob}, "--job"},
		{"one of several is right", []string{otherKey, silent, right}, ""},
	} {
		d := &Daemon{cfg: Config{Join: c.join}, listener: own, log: quiet(), ctx: brief(t)}
		err := d.askSeeds(t.TempDir())
		switch {
		case c.hint == "":
			if err != nil {
				t.Errorf("%s: %v", c.name, err)
			}
		case problemCode(err) != CodeAuth || !strings.Contains(err.Error(), c.hint):
			t.Errorf("%s: got %v, want code %d and %s", c.name, err, CodeAuth, c.hint)
		}
	}
}
