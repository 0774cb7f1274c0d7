// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"phalanx"
	"phalanx/ckpt"
	"phalanx/ckpt/mem"
	"phalanx/client/wire"
	"phalanx/consensus"
	"phalanx/elastic"
	"phalanx/node"
)

// Options are what a simulation is run with.
type Options struct {
	Seed  uint64 // draws the schedule of faults and the weather
	Dir   string // for the daemons' small files
	Calm  bool   // no faults
	Level slog.Level
	// Faults replaces the schedule that the seed draws, if not nil.
	Faults []Fault
	// Shape replaces the number of members on each host, if not nil.
	Shape []int
	Steps phalanx.Step
	// Objects is the store of the job, a new one if nil; Store, if not nil, is what a member sees of it.
	Objects *mem.Store
	Store   func(member phalanx.MemberID, s ckpt.Store) ckpt.Store
	// Slabs is how many each member has: 1, 2, or 0 for what the seed draws.
	Slabs int
}

// Report is what came of it.
type Report struct {
	Violations []string
	Injected   map[Class]int
	Simulated  time.Duration
	Trace      string
	Summary    string
}

// cluster is the simulated world.
type cluster struct {
	o        Options
	trace    *trace
	wires    *wires
	hosts    []*host
	members  []*member
	objects  *mem.Store
	spec     phalanx.JobSpec
	key      node.JobKey
	ledger   *ledger
	slotTime time.Duration
	ends     sync.WaitGroup
	faults   sync.WaitGroup // those under way
	over     chan struct{}  // closed when nothing is started any more
	calm     time.Time      // when the last fault ended

	mu         sync.Mutex
	violations []string
	injected   map[Class]int
	leader     phalanx.MemberID
}

// member is a member's daemons, one after the other, as phalanx run starts them.
type member struct {
	cluster *cluster
	host    *host
	index   int
	id      phalanx.MemberID
	done    chan struct{} // closed when an outcome is there
	outcome node.Outcome

	mu   sync.Mutex
	proc *process // the living daemon, nil between two
}

const memberPort = 7000

func newCluster(o Options) *cluster {
	shape := o.Shape
	rng := rand.New(rand.NewPCG(o.Seed, 1))
	if shape == nil {
		shape = [][]int{{1, 1, 1}, {1, 1, 1, 1}, {2, 1, 1}, {2, 2, 1}}[rng.IntN(4)]
	}
	if o.Objects == nil {
		o.Objects = mem.New()
	}
	if o.Steps == 0 {
		o.Steps = 200
	}
	c := &cluster{
		o: o, trace: &trace{begun: time.Now()}, objects: o.Objects, key: node.JobKey{1, byte(o.Seed), byte(o.Seed >> 8)},
		spec:     phalanx.JobSpec{LastStep: o.Steps, Seed: o.Seed, Slots: 8, GlobalBatch: 8, GroupSize: 1, Threads: 1},
		slotTime: defaultSlotTime, over: make(chan struct{}), injected: map[Class]int{},
	}
	c.trace.watch = c.watch
	c.ledger = newLedger(c.spec, undisturbed(c.spec), c.violated)
	for i, n := range shape {
		h := &host{cluster: c, name: string(rune('a' + i)), ip: net.IPv4(10, 0, 0, byte(i+1)).To4(), dir: filepath.Join(o.Dir, string(rune('a'+i))),
			disk: newDisk(rand.New(rand.NewPCG(o.Seed, uint64(100+i)))), up: true, booted: time.Now(), heap: wire.NewHeapMemory(), procs: map[int]*process{},
			watch: map[*procWatch]struct{}{}}
		c.hosts = append(c.hosts, h)
		for index := range n {
			c.members = append(c.members, &member{cluster: c, host: h, index: index, id: phalanx.NewMemberID(h.name, index), done: make(chan struct{})})
		}
	}
	c.wires = newWires(rand.New(rand.NewPCG(o.Seed, 2)), c.hosts)
	return c
}

func (c *cluster) violated(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	c.trace.add("CHECK", "VIOLATED: %s", text)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.violations = append(c.violations, text)
}

// watch follows the daemons' logs to know who leads.
func (c *cluster) watch(who, message string) {
	if message == "leads" {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.leader = phalanx.MemberID(who)
	}
}

func (c *cluster) leading() *member {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, m := range c.members {
		if m.id == c.leader {
			return m
		}
	}
	return c.members[0]
}

func (c *cluster) hostAt(ip net.IP) *host {
	for _, h := range c.hosts {
		if h.ip.Equal(ip) {
			return h
		}
	}
	return nil
}

func (c *cluster) localSize(h *host) int {
	n := 0
	for _, m := range c.members {
		if m.host == h {
			n++
		}
	}
	return n
}

// config is what phalanx run gives a daemon.
func (m *member) config(p *process) node.Config {
	c := m.cluster
	first := c.hosts[0]
	cfg := node.Config{
		Job: "sim", Dir: m.host.dir, Store: "objects", Host: m.host.name, Index: m.index, Policy: elastic.Policy{Want: len(c.members), Min: 1},
		Bind: m.host.ip.String(), Port: memberPort + m.index, Key: c.key, Bootstrap: m.host == first,
		SaveEvery: node.Interval{Steps: 25}, Keep: 2, Resume: "auto", MaxStarts: 1000, Hang: 20 * time.Second, Start: 20 * time.Second,
		Grace: 5 * time.Second, Command: []string{"toy"}, LocalSize: c.localSize(m.host), ShmDir: "/shm", Version: "sim",
		Memory: &memory{HeapMemory: m.host.memory(), proc: p}, Network: network{c.wires, p}, System: system{m.host, p}, Objects: c.objects,
		OpenLog: func(path string) (consensus.LogStore, error) { return m.host.disk.openStore(p, path) },
		Slabs:   cmp.Or(c.o.Slabs, 1+int(c.o.Seed%2)),
		Log:     c.trace.logger(string(m.id), c.o.Level), Started: c.trace.begun,
	}
	if c.o.Store != nil {
		cfg.Objects = c.o.Store(m.id, c.objects)
	}
	for i := range c.hosts {
		if c.hosts[i] != m.host && m.host != first {
			cfg.Join = append(cfg.Join, net.JoinHostPort(c.hosts[i].ip.String(), fmt.Sprint(memberPort)))
		}
	}
	return cfg
}

// run starts the daemon again whenever it ends, until the job ends for it.
func (m *member) run() {
	c := m.cluster
	for wait := time.Duration(0); ; wait = 100 * time.Millisecond {
		select {
		case <-c.over:
			return
		case <-time.After(wait):
		}
		if !m.host.powered() {
			continue
		}
		p := m.host.fork("D" + string(m.id))
		m.mu.Lock()
		m.proc = p
		m.mu.Unlock()
		c.trace.add(p.name, "starts, pid %d", p.pid)
		o, err := node.Run(p.ctx, m.config(p))
		died := p.dead()
		m.mu.Lock()
		m.proc = nil
		m.mu.Unlock()
		m.host.reap(p)
		switch {
		case died:
			c.trace.add(p.name, "pid %d is dead", p.pid)
		case err != nil:
			c.trace.add(p.name, "pid %d ends: %v", p.pid, err)
		default:
			c.trace.add(p.name, "pid %d ends with code %d, done %v: %s", p.pid, o.Code, o.Done, o.Reason)
			m.outcome = o
			close(m.done)
			return
		}
	}
}

// finished reports whether the job has ended for the member.
func (m *member) finished() bool {
	select {
	case <-m.done:
		return true
	default:
		return false
	}
}

// trainer is the living one, nil when there is none.
func (m *member) trainer() *process {
	for _, p := range m.host.running() {
		if p.name == "T"+string(m.id) && !p.dead() {
			return p
		}
	}
	return nil
}

// daemon is the living one, nil when there is none.
func (m *member) daemon() *process {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.proc == nil || m.proc.dead() {
		return nil
	}
	return m.proc
}

func (h *host) powered() bool {
	h.cluster.wires.mu.Lock()
	defer h.cluster.wires.mu.Unlock()
	return h.up
}

// patience is how much simulated time the job may take after the last fault has ended.
const patience = 90 * time.Second

// Run simulates one job to its end. It must be called in a bubble of testing/synctest, which finds what waits for ever.
func Run(o Options) (Report, error) {
	if o.Dir == "" {
		return Report{}, errors.New("simulate: no directory for the daemons' files")
	}
	time.Sleep(time.Until(time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC))) // a bubble begins in 2000, before the job's certificates
	c := newCluster(o)
	begun := time.Now()
	for _, m := range c.members {
		c.ends.Go(m.run)
	}
	faulted := make(chan struct{})
	c.ends.Go(func() {
		defer close(faulted)
		if !o.Calm {
			c.disturb()
		}
	})
	<-faulted
	c.calm = time.Now()
	c.trace.add("sim", "calm from now on, at step %d", c.ledger.progress())
	late := time.NewTimer(patience)
	defer late.Stop()
	for _, m := range c.members {
		if m.host.lost {
			continue
		}
		select {
		case <-m.done:
			if !m.outcome.Done || m.outcome.Step != c.spec.LastStep {
				c.violated("P1: %s ends with %+v", m.id, m.outcome)
			}
		case <-late.C:
			late.Reset(0)
			c.violated("P6: %s has not ended %s after the last fault; the job is at step %d of %d", m.id, patience, c.ledger.progress(), c.spec.LastStep)
		}
	}
	c.trace.add("sim", "ends: %s", c.ledger)
	close(c.over)
	for _, h := range c.hosts {
		for _, p := range h.running() {
			p.kill()
		}
	}
	c.ends.Wait()
	simulated := time.Since(begun)
	time.Sleep(time.Minute) // what ends by its own deadline, as memberlist's probes do, ends now; what is left waits for ever
	r := Report{Violations: c.violations, Injected: c.injected, Simulated: simulated, Trace: c.trace.String()}
	var parts []string
	for _, class := range classes {
		if n := c.injected[class]; n > 0 {
			parts = append(parts, fmt.Sprintf("%s %d", class, n))
		}
	}
	r.Summary = fmt.Sprintf("seed %d: %d members on %d hosts, %s, %.1f s: %s", o.Seed, len(c.members), len(c.hosts), c.ledger, r.Simulated.Seconds(), strings.Join(parts, ", "))
	return r, nil
}
