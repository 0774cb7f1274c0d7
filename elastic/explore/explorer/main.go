// SPDX-License-Identifier: Apache-2.0

// Command explorer explores the step protocol within chosen bounds and says what it found. It exits with 1 when a rule was
// broken, and tells how.
package main

import (
	"flag"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"phalanx"
	"phalanx/elastic/explore"
)

func main() {
	name := flag.String("config", "whole", "what to explore: whole, ci (all of them), or one of "+names())
	members := flag.Int("members", 0, "members instead of the configuration's")
	steps := flag.Int("steps", 0, "steps instead of the configuration's")
	faults := flag.Int("faults", -1, "faults instead of the configuration's")
	generations := flag.Int("generations", 0, "generations instead of the configuration's")
	states := flag.Int("states", 0, "the level that exceeds this many states is the last one")
	gib := flag.Int("gib", 24, "stop when the heap exceeds this many GiB")
	limit := flag.Duration("time", 4*time.Hour, "stop after this time")
	workers := flag.Int("workers", runtime.GOMAXPROCS(0), "goroutines")
	levels := flag.Bool("levels", false, "print each level")
	lines := flag.Bool("lines", false, "print which lines of the tables in elastic/doc.go were reached")
	flag.Parse()
	debug.SetGCPercent(200)
	debug.SetMemoryLimit(int64(*gib) << 30)
	all := explore.NewCoverage()
	fmt.Println("configuration | bounds | states | transitions | depth | seconds | result")
	bad := false
	for _, c := range chosen(*name) {
		c.Workers = *workers
		if *members > 0 {
			c.Members = *members
		}
		if *steps > 0 {
			c.Steps = phalanx.Step(*steps)
		}
		if *faults >= 0 {
			c.Faults = *faults
		}
		if *generations > 0 {
			c.Generations = *generations
		}
		if *states > 0 {
			c.MaxStates = *states
		}
		start := time.Now()
		c.Progress = func(depth, states, frontier int) bool {
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			if *levels {
				fmt.Fprintf(os.Stderr, "%s: depth %d, %d states, %d to go on from, %d MiB, %s\n", c.Name, depth, states, frontier, m.HeapInuse>>20, time.Since(start).Round(time.Second))
			}
			return time.Since(start) < *limit && m.HeapInuse < uint64(*gib)<<30
		}
		r, cover, err := explore.Run(c)
		if err != nil {
			fmt.Fprintln(os.Stderr, "explore:", err)
			os.Exit(1)
		}
		all.Add(cover)
		fmt.Printf("%s | %s | %d | %d | %d | %.1f | %s\n", c.Name, c.Bounds(), r.States, r.Transitions, r.Depth, time.Since(start).Seconds(), r.Result())
		if r.Violation != nil {
			bad = true
			fmt.Println(r.Violation.Story)
		}
	}
	if *lines {
		fmt.Println(strings.Join(all.Lines(), "\n"))
	}
	if bad {
		os.Exit(1)
	}
}

func names() string {
	var out []string
	for _, c := range explore.Configs() {
		out = append(out, c.Name)
	}
	return strings.Join(out, ", ")
}

func chosen(name string) []explore.Config {
	switch name {
	case "whole":
		return []explore.Config{explore.Whole()}
	case "ci":
		return explore.Configs()
	}
	i := slices.IndexFunc(explore.Configs(), func(c explore.Config) bool { return c.Name == name })
	if i < 0 {
		fmt.Fprintf(os.Stderr, "explore: no configuration is called %s; there are whole, ci, %s\n", name, names())
		os.Exit(2)
	}
	return explore.Configs()[i : i+1]
}
