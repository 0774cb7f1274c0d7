// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"
)

// Class is a kind of fault.
type Class string

// The classes of faults.
const (
	TrainerKilled  Class = "trainer killed"
	TrainerStopped Class = "trainer stopped"
	DaemonKilled   Class = "daemon killed" // its page and its trainer stay
	DaemonStopped  Class = "daemon stopped"
	LeaderKilled   Class = "leader killed"
	LeaderStopped  Class = "leader stopped"
	AllKilled      Class = "all killed"   // every daemon and trainer at once
	HostCrashed    Class = "host crashed" // memory and what was being written are lost; it comes back
	HostLost       Class = "host lost"    // for good
	PowerLost      Class = "power lost"   // on all hosts
	StoreTorn      Class = "log torn"     // a host crashes and its log is found damaged
	OneWayCut      Class = "one-way cut"
	Partition      Class = "partition"
	Weather        Class = "loss, delay, reorder"
	DiskHangs      Class = "disk hangs"
	DiskFull       Class = "disk full"
)

var classes = []Class{TrainerKilled, TrainerStopped, DaemonKilled, DaemonStopped, LeaderKilled, LeaderStopped, AllKilled, HostCrashed, HostLost, PowerLost,
	StoreTorn, OneWayCut, Partition, Weather, DiskHangs, DiskFull}

// Fault is one entry of a schedule.
type Fault struct {
	At    time.Duration // since the start
	Class Class
	Lasts time.Duration // for those that end
	Who   uint32        // picks the victims
}

func (f Fault) String() string { return fmt.Sprintf("%s at %s", f.Class, f.At) }

// The window in which faults begin. Before it the job forms its first world; it ends well before an undisturbed job would.
const (
	firstFault = 800 * time.Millisecond
	lastFault  = 7 * time.Second
)

// schedule draws the faults of a seed.
func schedule(seed uint64) []Fault {
	rng := rand.New(rand.NewPCG(seed, 3))
	kinds := slices.Clone(classes)
	rng.Shuffle(len(kinds), func(i, j int) { kinds[i], kinds[j] = kinds[j], kinds[i] })
	n := 6 + rng.IntN(5)
	var out []Fault
	once := map[Class]bool{}
	for i := 0; len(out) < n; i++ {
		class := kinds[i%len(kinds)]
		if len(out) >= 5 { // the first ones differ, the others may be alike
			class = kinds[rng.IntN(len(kinds))]
		}
		voter := class == HostLost || class == StoreTorn // takes one for good, and a majority of three must stay
		if voter && (once[HostLost] || once[StoreTorn]) || (class == PowerLost || class == AllKilled) && once[class] {
			continue
		}
		once[class] = true
		lasts := 100*time.Millisecond + time.Duration(rng.ExpFloat64()*float64(1500*time.Millisecond))
		out = append(out, Fault{
			At:    firstFault + time.Duration(rng.Int64N(int64(lastFault-firstFault))),
			Class: class, Lasts: min(lasts, 7*time.Second), Who: rng.Uint32(),
		})
	}
	slices.SortFunc(out, func(a, b Fault) int { return int(a.At - b.At) })
	return out
}

// disturb carries the schedule out and returns when the last fault has ended.
func (c *cluster) disturb() {
	faults := c.o.Faults
	if faults == nil {
		faults = schedule(c.o.Seed)
	}
	for _, f := range faults {
		time.Sleep(time.Until(c.trace.begun.Add(f.At)))
		for range 40 { // a victim that is dead already is no victim
			if c.inject(f) {
				break
			}
			f.Who++
			time.Sleep(50 * time.Millisecond)
		}
	}
	c.faults.Wait()
}

// inject begins a fault. It returns false when there is nothing that it could hit.
func (c *cluster) inject(f Fault) bool {
	m := c.members[int(f.Who)%len(c.members)]
	if f.Class == LeaderKilled || f.Class == LeaderStopped {
		m = c.leading()
	}
	h := m.host
	if !h.powered() || m.finished() {
		return false
	}
	what, end := string(m.id), (func())(nil)
	switch f.Class {
	case TrainerKilled, TrainerStopped:
		p := m.trainer()
		if p == nil {
			return false
		}
		if f.Class == TrainerKilled {
			p.killAt(1 + int(f.Who>>16%8))
		} else {
			p.stop(f.Lasts)
			end = func() {}
		}
	case DaemonKilled, DaemonStopped, LeaderKilled, LeaderStopped:
		p := m.daemon()
		if p == nil {
			return false
		}
		if f.Class == DaemonKilled || f.Class == LeaderKilled {
			p.killAt(1 + int(f.Who>>16%8))
			time.AfterFunc(200*time.Millisecond, p.kill) // it may ring none, and wires may be what it dies between
		} else {
			p.stop(f.Lasts)
			end = func() {}
		}
	case AllKilled:
		what = ""
		for _, h := range c.hosts {
			for _, p := range h.running() {
				p.kill()
			}
		}
	case HostCrashed:
		what = h.name
		end = c.crash(h)
	case StoreTorn:
		what = h.name
		h.disk.set(func() { h.disk.damage = true })
		end = c.crash(h)
	case HostLost:
		what = h.name
		h.lost = true
		c.crash(h)
	case PowerLost:
		what = ""
		var ends []func()
		for _, h := range c.hosts {
			if h.powered() {
				ends = append(ends, c.crash(h))
			}
		}
		end = func() {
			for _, f := range ends {
				f()
			}
		}
	case OneWayCut:
		o := c.other(h, f.Who)
		what = h.name + " to " + o.name
		end = c.wires.cut(way{h, o})
	case Partition:
		end = c.partition(f.Who, &what)
	case Weather:
		what, end = "everywhere", c.weather(f.Who)
	case DiskHangs:
		what = h.name
		h.disk.set(func() { h.disk.hangs = time.Now().Add(f.Lasts) })
		end = func() { h.disk.set(func() { h.disk.hangs = time.Time{} }) }
	case DiskFull:
		what = h.name
		h.disk.set(func() { h.disk.full = true })
		end = func() { h.disk.set(func() { h.disk.full = false }) }
	}
	c.injected[f.Class]++
	if end == nil {
		c.trace.add("FAULT", "%s: %s", f.Class, what)
		return true
	}
	c.trace.add("FAULT", "%s: %s for %s", f.Class, what, f.Lasts)
	c.faults.Go(func() {
		time.Sleep(f.Lasts)
		end()
		c.trace.add("FAULT", "over: %s: %s", f.Class, what)
	})
	return true
}

// other is another host.
func (c *cluster) other(h *host, who uint32) *host {
	i := slices.Index(c.hosts, h)
	return c.hosts[(i+1+int(who>>8)%(len(c.hosts)-1))%len(c.hosts)]
}

// crash takes the power of a host; the returned function gives it back.
func (c *cluster) crash(h *host) (back func()) {
	c.wires.power(h, false)
	for _, p := range h.running() {
		p.kill()
	}
	return func() {
		for _, p := range h.running() {
			<-p.gone
		}
		if h.lost {
			return
		}
		if h.disk.crash() {
			c.trace.add("host "+h.name, "its log is damaged")
		}
		h.restart()
		c.wires.power(h, true)
	}
}

// partition cuts the hosts in two, both ways.
func (c *cluster) partition(who uint32, what *string) (heal func()) {
	var sides [2][]*host
	for i, h := range c.hosts {
		side := who >> (8 + i) & 1
		sides[side] = append(sides[side], h)
	}
	if len(sides[0]) == 0 || len(sides[1]) == 0 {
		k := int(who) % len(c.hosts)
		sides[0] = c.hosts[k : k+1]
		sides[1] = slices.Delete(slices.Clone(c.hosts), k, k+1)
	}
	var heals []func()
	*what = ""
	for _, a := range sides[0] {
		*what += a.name
		for _, b := range sides[1] {
			heals = append(heals, c.wires.cut(way{a, b}), c.wires.cut(way{b, a}))
		}
	}
	*what += " from "
	for _, b := range sides[1] {
		*what += b.name
	}
	return func() {
		for _, f := range heals {
			f()
		}
	}
}

// weather makes every link bad.
func (c *cluster) weather(who uint32) (calm func()) {
	delay := time.Duration(who>>4%20) * time.Millisecond
	loss := float64(who>>12%25) / 100
	var calms []func()
	for v := range c.wires.links {
		calms = append(calms, c.wires.disturb(v, delay, 2*delay+5*time.Millisecond, loss))
	}
	return func() {
		for _, f := range calms {
			f()
		}
	}
}
