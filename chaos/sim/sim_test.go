// SPDX-License-Identifier: Apache-2.0

// Post-quantum handshakes would be a tenth of all that is computed here.
//go:debug tlsmlkem=0

package sim

import (
	"flag"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

var (
	seeds = flag.Int("sim.seeds", 100, "how many seeds are simulated")
	first = flag.Uint64("sim.first", 1, "the first of them")
	only  = flag.Uint64("sim.seed", 0, "the one seed to simulate, with its whole trace")
	debug = flag.Bool("sim.debug", false, "put the daemons' debugging messages into the trace")
)

// realLimit is how long a seed may take on a busy machine. One that takes longer has a goroutine that waits for something that
// simulated time does not know, a lock held while time passes: the stacks tell.
const realLimit = 4 * time.Minute

// simulate runs a seed in a bubble.
func simulate(t *testing.T, o Options) (r Report, err error) {
	t.Helper()
	o.Dir = t.TempDir()
	o.Level = slog.LevelInfo
	if *debug {
		o.Level = slog.LevelDebug
	}
	stuck := time.AfterFunc(realLimit, func() {
		b := make([]byte, 16<<20)
		fmt.Fprintf(os.Stderr, "seed %d does not end:\n%s\n", o.Seed, b[:runtime.Stack(b, true)])
		os.Exit(1)
	})
	defer stuck.Stop()
	bubble(t, func() { r, err = Run(o) })
	return r, err
}

// run runs a seed that must keep all promises.
func run(t *testing.T, o Options) Report {
	t.Helper()
	begun := time.Now()
	r, err := simulate(t, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%s (%.2f s)", r.Summary, time.Since(begun).Seconds())
	if len(r.Violations) > 0 || *only != 0 {
		t.Logf("trace:\n%s", r.Trace)
	}
	for _, v := range r.Violations {
		t.Error(v)
	}
	return r
}

// bubble runs f in simulated time. Every goroutine must have ended by its end, but those that wait for an answer that Raft does
// not give: what it has taken and not looked at when it shuts down it never answers, and a process would end with them.
func bubble(t *testing.T, f func()) {
	t.Helper()
	var name string // of the bubble, in stacks
	defer func() {
		p := recover()
		if p == nil {
			return
		}
		b := make([]byte, 16<<20)
		left := 0
		for _, stack := range strings.Split(string(b[:runtime.Stack(b, true)]), "\n\n") {
			head, _, _ := strings.Cut(stack, "\n")
			if !strings.Contains(head, name) || strings.Contains(stack, "consensus.(*Log).await.func1") || strings.Contains(stack, "consensus.(*Log).close.func1") {
				continue
			}
			left++
			t.Errorf("is left over:\n%s", stack)
		}
		if left > 0 || !strings.Contains(fmt.Sprint(p), "main bubble goroutine has exited") {
			panic(p)
		}
	}()
	synctest.Test(t, func(*testing.T) {
		b := make([]byte, 256)
		head, _, _ := strings.Cut(string(b[:runtime.Stack(b, false)]), "\n")
		name = head[strings.Index(head, "synctest bubble"):]
		f()
	})
}

// One trainer dies; nobody notices it in the result.
func TestThreeHostsTrainThroughADeath(t *testing.T) {
	r := run(t, Options{Seed: 1, Shape: []int{1, 1, 1}, Steps: 60, Faults: []Fault{{At: time.Second, Class: TrainerKilled, Who: 1}}})
	if r.Injected[TrainerKilled] != 1 {
		t.Error("nobody was killed")
	}
}

// What seeds have found stays: each of these failed before it was mended.
func TestFound(t *testing.T) {
	for name, faults := range map[string][]Fault{
		// The leader took it for a second host of its name and refused it for good.
		"host is back at once": {{At: 2 * time.Second, Class: HostCrashed, Who: 2, Lasts: 300 * time.Millisecond}},
		// Its daemon waited for itself while it opened the log.
		"disk is full at start": {
			{At: time.Second, Class: DiskFull, Who: 1, Lasts: 3 * time.Second},
			{At: 1500 * time.Millisecond, Class: DaemonKilled, Who: 1},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := run(t, Options{Seed: 7, Shape: []int{1, 1, 1}, Steps: 100, Faults: faults})
			if len(r.Injected) != len(faults) {
				t.Errorf("injected %v", r.Injected)
			}
		})
	}
}

// Whole clusters under the faults that each seed draws.
func TestSeeds(t *testing.T) {
	from, n := *first, *seeds
	if testing.Short() {
		n = min(n, 3)
	}
	if *only != 0 {
		from, n = *only, 1
	}
	for seed := from; seed < from+uint64(n); seed++ {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			r := run(t, Options{Seed: seed})
			total := 0
			for _, n := range r.Injected {
				total += n
			}
			if total < 5 || len(r.Injected) < 4 {
				t.Errorf("%d faults of %d classes were injected, want at least 5 of 4", total, len(r.Injected))
			}
		})
	}
}
