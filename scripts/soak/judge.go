// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"slices"
	"strings"
)

const mib = 1 << 20

// phases of a run in which values are compared.
const (
	disturbedPhase = "while disturbed"
	peacePhase     = "in peace"
)

// limit is how much a quantity may grow from the first third of a phase to the last.
type limit struct {
	class, quantity, phase string
	relative               float64 // of the first third
	absolute               float64
	hourly                 float64 // for every hour between the thirds: what is known to grow, and why is said beside it
	most                   float64 // whatever it began with; 0: no such bound
}

// limits are all that is judged. In peace each process that lives all the time is judged by itself; while processes are killed
// it is the median of a class, which shows what a growing state costs every new process.
//
// Memory of Go programs moves with the rhythm of the collector. A leak of 8 MiB in the fifth of a two hour run that lies
// between the thirds of its peace is 12 bytes a step and rank.
var limits = []limit{
	{class: "daemon", quantity: "rss bytes", phase: peacePhase, relative: 0.10, absolute: 8 * mib},
	{class: "daemon", quantity: "anon bytes", phase: peacePhase, relative: 0.10, absolute: 8 * mib},
	// Leadership may move between two daemons in peace too: the leader holds a stream to each, and Raft keeps up to three
	// connections to each of four others at hand, each with its goroutines.
	{class: "daemon", quantity: "descriptors", phase: peacePhase, absolute: 16},
	{class: "daemon", quantity: "threads", phase: peacePhase, absolute: 3},
	{class: "daemon", quantity: "goroutines", phase: peacePhase, absolute: 24},
	{class: "trainer", quantity: "rss bytes", phase: peacePhase, relative: 0.10, absolute: 8 * mib},
	{class: "trainer", quantity: "anon bytes", phase: peacePhase, relative: 0.10, absolute: 8 * mib},
	{class: "trainer", quantity: "descriptors", phase: peacePhase, absolute: 3},
	{class: "trainer", quantity: "threads", phase: peacePhase, absolute: 3},
	{class: "run", quantity: "rss bytes", phase: peacePhase, relative: 0.10, absolute: 8 * mib},
	{class: "run", quantity: "descriptors", phase: peacePhase, absolute: 3},
	{class: "run", quantity: "threads", phase: peacePhase, absolute: 3},

	// The state keeps 256 transitions, some of which come in the first hour.
	{class: "daemon", quantity: "rss bytes", phase: disturbedPhase, relative: 0.20, absolute: 12 * mib},
	{class: "daemon", quantity: "anon bytes", phase: disturbedPhase, relative: 0.20, absolute: 12 * mib},
	{class: "daemon", quantity: "descriptors", phase: disturbedPhase, absolute: 12},
	{class: "daemon", quantity: "threads", phase: disturbedPhase, absolute: 6},
	{class: "daemon", quantity: "goroutines", phase: disturbedPhase, absolute: 20},
	{class: "trainer", quantity: "rss bytes", phase: disturbedPhase, relative: 0.20, absolute: 12 * mib},
	{class: "trainer", quantity: "anon bytes", phase: disturbedPhase, relative: 0.20, absolute: 12 * mib},
	{class: "trainer", quantity: "descriptors", phase: disturbedPhase, absolute: 3},
	{class: "trainer", quantity: "threads", phase: disturbedPhase, absolute: 6},

	// A page, a board, a segment and a slab of each member, the bells, and what one or two lives before still hold.
	{class: "host", quantity: "shm files", phase: disturbedPhase, absolute: 8, most: 3*4*members + 1},
	{class: "host", quantity: "shm files", phase: peacePhase, absolute: 0},
	{class: "host", quantity: "shm bytes", phase: disturbedPhase, relative: 0.50, absolute: 16 * mib},
	{class: "host", quantity: "shm bytes", phase: peacePhase, relative: 0.02},
	// The newest lives of each member, and each daemon's log; a short run does not come to as many lives.
	{class: "host", quantity: "log files", phase: disturbedPhase, absolute: members * keepLogs, most: members * (keepLogs + 1)},
	{class: "host", quantity: "log files", phase: peacePhase, absolute: 0},
	// A line every 50 steps and the changes of the world; rotated at 64 MiB.
	{class: "host", quantity: "log bytes", phase: disturbedPhase, absolute: mib, hourly: 16 * mib},
	{class: "host", quantity: "log bytes", phase: peacePhase, absolute: mib / 4, hourly: 4 * mib},
	// A log keeps 2048 entries behind its snapshot, so it grows until it has them: a change of the world is some 4 KiB in the
	// log of each of five, a published checkpoint one.
	{class: "host", quantity: "raft bytes", phase: disturbedPhase, absolute: 2 * mib, hourly: 48 * mib, most: members * 64 * mib},
	{class: "host", quantity: "raft bytes", phase: peacePhase, absolute: mib, hourly: 16 * mib},
	// The checkpoints that are kept and the one that is being written; an attempt that was broken off stays until the next
	// one is published. Commit objects stay for good, as stubs.
	{class: "host", quantity: "store bytes", phase: disturbedPhase, relative: 1.0, absolute: 8 * mib},
	{class: "host", quantity: "store bytes", phase: peacePhase, relative: 0.5, absolute: 4 * mib},
	{class: "host", quantity: "other bytes", phase: disturbedPhase, absolute: mib / 4},
	{class: "host", quantity: "other bytes", phase: peacePhase, absolute: mib / 4},
}

// row is one comparison.
type row struct {
	limit
	what              string // the process that grew most, of those that were compared
	from, to, allowed float64
	compared          int // processes; 0: nothing to compare, which is a failure of its own
}

func (r row) ok() bool { return r.compared > 0 && r.to <= r.allowed }

// judge compares what was sampled with the limits.
func judge(samples []sample) []row {
	var rows []row
	for _, l := range limits {
		var part []sample
		for _, x := range samples {
			if x.peace == (l.phase == peacePhase) {
				part = append(part, x)
			}
		}
		part = part[min(len(part), (len(part)+9)/10):] // the tenth in which it warms up
		rows = append(rows, compare(l, part))
	}
	return rows
}

// compare takes the processes that live all the time of a peace one by one, and else the median of the class.
func compare(l limit, part []sample) row {
	lines := map[string][]float64{}
	for _, x := range part {
		var all []float64
		for k, v := range x.values {
			if k.class != l.class || k.quantity != l.quantity {
				continue
			}
			if l.phase == peacePhase {
				lines[k.what] = append(lines[k.what], v)
			}
			all = append(all, v)
		}
		if l.phase == disturbedPhase && len(all) > 0 {
			lines[""] = append(lines[""], median(all))
		}
	}
	worst := row{limit: l}
	for what, values := range lines {
		often := 0.9
		if l.phase == disturbedPhase {
			often = 0.5 // the job is also stopped and started
		}
		if float64(len(values)) < often*float64(len(part)) || len(values) < 6 {
			continue // it came or went
		}
		third := len(values) / 3
		r := row{limit: l, what: what, from: median(values[:third]), to: median(values[len(values)-third:])}
		hours := (part[len(part)-1].at - part[0].at).Hours() * 2 / 3
		r.allowed = r.from*(1+l.relative) + l.absolute + l.hourly*hours
		if l.most > 0 {
			r.allowed = min(r.allowed, l.most)
		}
		compared := worst.compared + 1
		if worst.compared == 0 || r.to-r.allowed > worst.to-worst.allowed || r.to-r.allowed == worst.to-worst.allowed && r.what < worst.what {
			worst = r
		}
		worst.compared = compared
	}
	return worst
}

func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[len(sorted)/2]
}

// show prints a value with a unit that can be read.
func show(quantity string, v float64) string {
	if !strings.HasSuffix(quantity, "bytes") {
		return fmt.Sprintf("%.0f", v)
	}
	return fmt.Sprintf("%.2f MiB", v/mib)
}

// table is what a run prints.
func table(rows []row) string {
	var b strings.Builder
	fmt.Fprintf(&b, "\n| phase | class | quantity | compared | first third | last third | allowed | |\n|---|---|---|---|---|---|---|---|\n")
	for _, r := range rows {
		verdict := "flat"
		switch {
		case r.compared == 0:
			verdict = "**never seen**"
		case !r.ok():
			verdict = "**grew** " + r.what
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %d | %s | %s | %s | %s |\n", r.phase, r.class, r.quantity, r.compared,
			show(r.quantity, r.from), show(r.quantity, r.to), show(r.quantity, r.allowed), verdict)
	}
	return b.String() + "\n"
}
