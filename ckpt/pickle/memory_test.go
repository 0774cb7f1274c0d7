// SPDX-License-Identifier: Apache-2.0

package pickle_test

import (
	"errors"
	"runtime"
	"runtime/debug"
	"strings"
	"testing"
	"time"

	"phalanx/ckpt/pickle"
)

// peak is the most memory that the heap takes while f runs, beyond what it had before.
func peak(f func()) int64 {
	debug.FreeOSMemory()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	before, most := m.HeapInuse, m.HeapInuse
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			runtime.ReadMemStats(&m)
			most = max(most, m.HeapInuse)
			select {
			case <-stop:
				return
			case <-time.After(time.Millisecond):
			}
		}
	}()
	f()
	close(stop)
	<-stopped
	return int64(most - before)
}

// TestMemoryFollowsTheInput: pickles that build as much as they can of each byte take a bounded multiple of their size.
func TestMemoryFollowsTheInput(t *testing.T) {
	const n = 8 << 20
	batches := func(item string) string { // as picklers write long lists
		return "]" + strings.Repeat("("+strings.Repeat(item, 1000)+"e", n/(1000*len(item)+2)) + "."
	}
	for name, c := range map[string]struct {
		content string
		refused bool
		mib     int64 // allowed, 0: in proportion to the content
	}{
		"one value many times":    {"]\x94(" + strings.Repeat("h\x00", n/2) + "e.", true, 128},
		"nested lists":            {strings.Repeat("]", n) + strings.Repeat("a", n-1) + ".", true, 128},
		"lists side by side":      {batches("]"), true, 0},
		"empty tuples":            {batches(")"), true, 0},
		"dicts":                   {"}" + strings.Repeat("(NNu", n/4) + ".", false, 0},
		"marks":                   {strings.Repeat("(", n) + ".", true, 128},
		"the memo":                {"]" + strings.Repeat("\x94", n) + ".", false, 0},
		"small numbers":           {batches("K\x05"), false, 0},
		"numbers":                 {batches("M\x05\x05"), false, 0},
		"short strings":           {batches("U\x01a"), false, 0},
		"tuples of two":           {batches("NN\x86"), true, 0},
		"objects":                 {"cm\nC\nq\x000" + batches("h\x00)R"), true, 0},
		"a number high in memory": {"Nr\xff\xff\xff\xff.", true, 0},
	} {
		t.Run(name, func(t *testing.T) {
			var err error
			most := peak(func() { _, err = pickle.Decode([]byte(c.content), pickle.Policy{Foreign: true}, pickle.Limits{}) })
			allowed := c.mib << 20
			if allowed == 0 { // with what is not collected yet
				allowed = int64(192<<20 + 20*len(c.content))
			}
			if most > allowed {
				t.Errorf("%d bytes took %d MiB, allowed are %d", len(c.content), most>>20, allowed>>20)
			}
			if errors.Is(err, pickle.ErrLimit) != c.refused || err != nil && !c.refused {
				t.Errorf("%v", err)
			}
			t.Logf("%d MiB for %d", most>>20, len(c.content)>>20)
		})
	}
}
