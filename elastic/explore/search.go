// SPDX-License-Identifier: Apache-2.0

package explore

import (
	"fmt"
	"strconv"
	"strings"
	"sync"

	"phalanx"
	"phalanx/elastic"
)

// explorer is one exploration.
type explorer struct {
	Config
	spec    phalanx.JobSpec
	planner elastic.Planner
	names   []phalanx.MemberID
	orders  [][]int
	ordered [][]phalanx.MemberID
	states  states
	good    *seenSet
	cover   *Coverage
	buffers sync.Pool

	visited visited
}

func (x *explorer) buffer() []byte {
	if b, ok := x.buffers.Get().(*[]byte); ok {
		return (*b)[:0]
	}
	return make([]byte, 0, 1024)
}

func (x *explorer) release(b []byte) { x.buffers.Put(&b) }

func newExplorer(c Config) (*explorer, error) {
	if err := c.defaults(); err != nil {
		return nil, err
	}
	x := &explorer{Config: c, good: newSeenSet(), cover: NewCoverage()}
	x.spec = phalanx.JobSpec{LastStep: 100, Slots: 8, GlobalBatch: 8, GroupSize: c.Group, Threads: 1}
	if c.Finish {
		x.spec.LastStep = c.Steps
	}
	x.planner = elastic.Planner{Spec: &x.spec, Policy: elastic.Policy{Want: c.Want, Min: c.Min}}
	for i := range c.Members {
		x.names = append(x.names, phalanx.NewMemberID(string(rune('a'+i)), 0))
	}
	x.orders = orders(c.Members, c.Distinct)
	for _, order := range x.orders {
		names := make([]phalanx.MemberID, len(order))
		for n, i := range order {
			names[n] = x.names[i]
		}
		x.ordered = append(x.ordered, names)
	}
	x.states.known, x.states.plans = map[hash]*logged{}, map[hash]*planned{}
	x.visited.index = make([]uint32, 1<<12)
	return x, nil
}

// begin is the world in which the first generation is formed and everybody in it is ready.
func (x *explorer) begin() (*world, error) {
	d := &doing{x: x, world: &world{head: &node{state: x.intern(elastic.NewState())}}}
	if x.Opening {
		return d.world, nil
	}
	for i := range x.Members - x.Joiners {
		d.start(i)
	}
	d.run(0)
	if d.wrong != "" || d.state().World.Size() == 0 {
		return nil, fmt.Errorf("configuration %s does not begin: %s: %s", x.Name, d.standing(), d.wrong)
	}
	w, err := x.before(d.world)
	if err != nil {
		return nil, err
	}
	w.faults, w.formed, w.wishes = 0, 1, 0
	return w, nil
}

// run lets everybody go on to a step, and read all that there is.
func (d *doing) run(step phalanx.Step) {
	for range 20 {
		d.round1(step)
	}
	for i, l := range d.lives {
		for l != nil && l.up() && l.at != d.head {
			l = d.on(i)
			l.at = l.at.next(d.head)
			d.step(i, elastic.Read{State: l.at.state.State})
		}
	}
	d.refresh()
}

// before does what happens before the exploration begins.
func (x *explorer) before(w *world) (*world, error) {
	bounds := x.Config
	defer func() { x.Config = bounds }()
	x.Generations, x.Faults, x.Wishes = 99, 99, 99
	for _, words := range x.Before {
		c := *w
		d := &doing{x: x, world: &c}
		if to, ok := strings.CutPrefix(words, "run to "); ok {
			step, err := strconv.Atoi(to)
			if d.run(phalanx.Step(step)); err != nil || d.wrong != "" {
				return nil, fmt.Errorf("configuration %s: %s: %w %s", x.Name, words, err, d.wrong)
			}
			w = d.world
			continue
		}
		var next *world
		var can []string
		for _, e := range d.events(nil) {
			t := teller{explorer: x}
			t.tell(w, e)
			told := strings.ReplaceAll(strings.TrimPrefix(strings.TrimSpace(t.String()), "> "), "\n> ", "; ")
			if told == words {
				next = x.after(w, e)
			}
			can = append(can, told)
		}
		if next == nil {
			return nil, fmt.Errorf("configuration %s: %q cannot happen, but %q", x.Name, words, can)
		}
		w = next
	}
	return w, nil
}

// visited remembers the keys of worlds, and from which one each was reached first.
type visited struct {
	keys  []hash
	from  []uint32
	index []uint32 // open addressing: 1 + place in keys
}

func (v *visited) find(h hash) bool {
	mask := uint64(len(v.index) - 1)
	for i := h[0] & mask; v.index[i] != 0; i = (i + 1) & mask {
		if v.keys[v.index[i]-1] == h {
			return true
		}
	}
	return false
}

// add returns false when the key is known.
func (v *visited) add(h hash, from uint32) bool {
	if len(v.keys)*10 > len(v.index)*6 {
		v.grow()
	}
	mask := uint64(len(v.index) - 1)
	i := h[0] & mask
	for ; v.index[i] != 0; i = (i + 1) & mask {
		if v.keys[v.index[i]-1] == h {
			return false
		}
	}
	v.keys, v.from = append(v.keys, h), append(v.from, from)
	v.index[i] = uint32(len(v.keys))
	return true
}

func (v *visited) grow() {
	v.index = make([]uint32, 2*len(v.index))
	mask := uint64(len(v.index) - 1)
	for k, h := range v.keys {
		i := h[0] & mask
		for v.index[i] != 0 {
			i = (i + 1) & mask
		}
		v.index[i] = uint32(k + 1)
	}
}

// front is one world to go on from.
type front struct {
	*world
	id uint32
}

// found is what a goroutine makes of one world.
type found struct {
	next        []*world
	keys        []hash
	transitions int
	wrong       string // of the world itself
	sameLeader  bool   // who went on was the same leader
	wrongNext   *event // leads to a broken rule
	wrongWhat   string
}

// batch is how many worlds are expanded before what was found is put in order.
const batch = 2048

// Run explores until everything within the bounds was visited, or a rule was broken.
func Run(c Config) (Report, *Coverage, error) {
	x, err := newExplorer(c)
	if err != nil {
		return Report{}, nil, err
	}
	r, err := x.run()
	return r, x.cover, err
}

func (x *explorer) run() (Report, error) {
	r := Report{Config: x.Config}
	w, err := x.begin()
	if err != nil {
		return r, err
	}
	ks := make([]*keyed, x.Workers)
	for i := range ks {
		ks[i] = &keyed{x: x}
	}
	ks[0].target = noTarget
	x.visited.add(ks[0].key(w), 0)
	frontier := []front{{w, 0}}
	for len(frontier) > 0 {
		if x.MaxStates > 0 && len(x.visited.keys) > x.MaxStates || x.MaxDepth > 0 && r.Depth >= x.MaxDepth {
			r.States = len(x.visited.keys)
			return r, nil
		}
		var next []front
		for len(frontier) > 0 {
			part := frontier[:min(batch, len(frontier))]
			frontier = frontier[len(part):]
			for i, f := range x.expand(ks, part) {
				r.Transitions += int64(f.transitions)
				from := part[i].id
				if f.wrong != "" || f.wrongNext != nil {
					r.States = len(x.visited.keys)
					r.Violation, err = x.violation(from, f)
					return r, err
				}
				for n, h := range f.keys {
					if x.visited.add(h, from) {
						next = append(next, front{f.next[n], uint32(len(x.visited.keys) - 1)})
					}
				}
			}
			clear(part)
		}
		r.Depth++
		frontier = next
		if x.Progress != nil && !x.Progress(r.Depth, len(x.visited.keys), len(next)) {
			r.States = len(x.visited.keys)
			return r, nil
		}
	}
	r.States, r.Depth, r.Whole = len(x.visited.keys), r.Depth-1, true
	return r, nil
}

// expand finds what follows each of some worlds, with several goroutines.
func (x *explorer) expand(ks []*keyed, part []front) []found {
	out := make([]found, len(part))
	if len(ks) == 1 {
		for i := range part {
			ks[0].expand(part[i].world, &out[i])
		}
		return out
	}
	const few = 16
	var wg sync.WaitGroup
	var mu sync.Mutex
	taken := 0
	for _, k := range ks {
		wg.Go(func() {
			for {
				mu.Lock()
				first := taken
				taken += few
				mu.Unlock()
				if first >= len(part) {
					return
				}
				for i := first; i < min(first+few, len(part)); i++ {
					k.expand(part[i].world, &out[i])
				}
			}
		})
	}
	wg.Wait()
	return out
}

func (k *keyed) expand(w *world, f *found) {
	if !k.x.SafetyOnly {
		if f.wrong, f.sameLeader = k.progress(w); f.wrong != "" {
			return
		}
	}
	k.target = noTarget
	d := &doing{x: k.x, world: w}
	k.events = d.events(k.events[:0])
	for _, e := range k.events {
		n := k.x.after(w, e)
		f.transitions++
		if n.wrong != "" {
			if f.wrongNext == nil {
				f.wrongNext, f.wrongWhat = &e, n.wrong
			}
			continue
		}
		h := k.key(n)
		if k.x.visited.find(h) {
			continue
		}
		f.next, f.keys = append(f.next, n), append(f.keys, h)
	}
}

// noTarget is for the keys of worlds that are explored rather than finished.
const noTarget = ^phalanx.Step(0)
