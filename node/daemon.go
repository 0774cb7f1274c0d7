// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"phalanx"
	"phalanx/ckpt"
	"phalanx/client/wire"
	"phalanx/collective/host"
	"phalanx/consensus"
	"phalanx/elastic"
	"phalanx/internal/failpoint"
	"phalanx/membership"
)

// Deadlines of the daemon, from fast to slow; each bounds what the one before may take. What depends on the job (hang,
// start, grace) is in Config.
const (
	reportEvery    = 250 * time.Millisecond  // a member's heartbeat to the leader
	troubleEvery   = 100 * time.Millisecond  // the same while its trainer is in trouble
	tickEvery      = 50 * time.Millisecond   // the loop looks at its deadlines
	lateTick       = 150 * time.Millisecond  // this daemon itself has not run
	graceNewPID    = time.Second             // until a daemon's successor must be seen: like any stall, no sooner, a busy host starts processes slowly
	graceHello     = 2 * time.Second         // until the successor must have said hello
	sealSilence    = time.Second             // a member that does not answer a seal
	answerDeadline = 5 * time.Second         // one that is heard and does not answer it
	stallAfter     = 1500 * time.Millisecond // a stopped process is evicted no sooner
	leaseLength    = 10 * time.Second        // longer than any election
	leaseRenew     = 2 * time.Second
	logWait        = 5 * time.Second  // for the log of an earlier start, before a trainer is started without it
	formDeadline   = 15 * time.Second // without any progress of forming or healing
	stopDeadline   = 10 * time.Second
	electionLease  = 300 * time.Millisecond // below it a leader on full cores steps down without need
	commitTimeout  = electionLease / 3      // Raft's own word of a commit; members hear by their streams, at once
)

// inlineBytes is up to which size the loop runs a collective by itself: some tenths of a millisecond of work, about what the way to
// another goroutine and back costs when all processors are busy.
const inlineBytes = 2 << 20

// groupPatience is how long a collective in a group that trainers made may make no progress. Their own timeouts, of minutes or hours,
// end it before, and so does the end of a trainer; this is for trainers that neither wait nor end.
const groupPatience = 7 * 24 * time.Hour

// Daemon is the peer daemon of one member. One goroutine, the loop, owns everything that is not said to be shared.
type Daemon struct {
	cfg      Config
	log      *slog.Logger
	paths    Paths
	tag      string      // names the job to Raft and gossip
	home     string      // names the directory
	named    atomic.Bool // the log counts on this life
	identity *Identity
	listener *Listener
	gossip   *membership.Gossip
	procs    ProcWatcher
	bells    wire.BellSet
	store    ckpt.Store
	memory   *hostMemory // of this member
	raft     *consensus.Log
	server   atomic.Pointer[string] // the Raft server's name, for goroutines that may run before raft is set
	lock     *os.File               // the member's lock
	replica  *replica
	engine   *host.Engine
	roster   *roster
	applied  atomic.Bool // the replica has a newer state
	watchers *watchers
	posts    chan func() // 1024: work for the loop from other goroutines, which ring its bell
	bell     wire.Bell   // the one thing on which the loop sleeps
	ringing  sync.RWMutex
	silent   bool // under ringing: the bells are about to be unmapped
	ends     sync.WaitGroup
	ctx      context.Context
	cancel   context.CancelCauseFunc

	turn turn // of the loop

	// The loop's own.
	state      *elastic.State
	life       *life
	siblings   []*sibling
	lead       *arbiter
	up         *upstream
	restart    RestartPolicy
	failed     string          // why the trainer is not started any more
	failedAs   int             // exit code that says the same, 0 while failed is empty
	hindered   string          // what keeps the trainer from being started for now
	hidden     bool            // the file that says how this daemon is reached could not be written
	tries      int             // hindered starts since the last one
	before     *trainerProcess // the trainer that died last, whose end is awaited before the next one starts
	heard      bool            // a trainer has said hello to this daemon
	lastEnd    string          // how the trainer before this life ended, for the reason to give up
	leaving    bool
	stopWhy    string
	starting   bool
	lease      int64 // expiry by CLOCK_BOOTTIME
	leaseOK    bool
	asked      time.Time // newest lease asked for
	reported   time.Time
	dirty      bool // the report has changed
	form       *forming
	links      usedLinks // of the newest formation
	heal       *healing
	healed     <-chan struct{} // closed when the newest heal touches nothing any more
	saver      *saver
	timings    FirstStep
	outcome    *Outcome
	ended      bool
	broken     error // why the loop cannot go on
	steps      stepTimes
	ticks      uint64
	names      uint64    // version of the shared memory's names that siblings were looked for in
	renamed    bool      // it may have changed since the tick before
	leaderless time.Time // since when no leader is known; zero: one is
	warned     time.Time // when that was last said
	waitLog    time.Time // until when the log of an earlier start is waited for
	ticked     time.Time // newest tick
	rotating   bool
	rotated    time.Time              // when the size of the output was looked at
	forgot     time.Time              // when strangers were last forgotten
	view       atomic.Pointer[Status] // for readers outside of the loop
	viewed     time.Time              // when it was made
	niced      bool
	peers      *peerLinks
	meters     *meters
	trouble    storeTrouble
	plain      *plainRun
	kv         *stores            // the key-value store of the generation
	evidence   []phalanx.Evidence // against the current generation
	requests   uint64
	waiting    map[uint64]chan *Reply // operators' requests that the leader has not answered

	// Of formations, which run beside the loop one at a time.
	forming  sync.Mutex
	mappings map[lifeKey]mapped
}

func (d *Daemon) me() phalanx.MemberID { return d.cfg.Member() }

// Run runs a daemon until the job ends for it, or ctx does: then the daemon stops and leaves its trainer alone.
func Run(ctx context.Context, cfg Config) (Outcome, error) {
	if err := cfg.Validate(); err != nil {
		return Outcome{Code: CodeUsage}, &Problem{CodeUsage, err, "see: phalanx run --help"}
	}
	d := &Daemon{
		cfg: cfg, log: cfg.Log.With("member", string(cfg.Member())), paths: NewPaths(cfg.Dir, cfg.ShmDir).in(cfg.Memory).on(cfg.System),
		posts:    make(chan func(), 1024),
		watchers: newWatchers(), restart: RestartPolicy{Max: cfg.MaxStarts}, siblings: make([]*sibling, MaxLocal),
		state: elastic.NewState(), replica: newReplica(), mappings: map[lifeKey]mapped{}, waiting: map[uint64]chan *Reply{},
	}
	d.memory = newHostMemory(cfg.MaxHost / int64(max(1, cfg.LocalSize)))
	d.meters = newMeters(cfg.Job, cfg.Member(), d.view.Load)
	d.ctx, d.cancel = context.WithCancelCause(ctx)
	defer d.cancel(nil)
	if cfg.Plain {
		d.plain, d.restart.Unit = newPlainRun(d), "a minute of uptime"
	}
	if err := d.open(); err != nil {
		d.close()
		return Outcome{Code: problemCode(err)}, err
	}
	err := d.loop()
	d.close()
	d.forgetLog()
	if err != nil {
		return Outcome{Code: problemCode(err)}, err
	}
	if d.outcome == nil {
		cause := context.Cause(d.ctx)
		var p *Problem
		if errors.As(cause, &p) {
			return Outcome{Code: p.Code}, cause
		}
		return Outcome{Code: CodeInterrupt}, cause
	}
	return *d.outcome, nil
}

func problemCode(err error) int {
	var p *Problem
	if errors.As(err, &p) {
		return p.Code
	}
	return CodeFailed
}

// open starts everything, in the order in which later parts need the earlier ones.
func (d *Daemon) open() (err error) {
	dir := d.paths.Member(d.cfg.Index)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return &Problem{CodeFailed, fmt.Errorf("make the member's directory: %w", err), "choose a directory that can be written with --dir"}
	}
	if err := d.lockMember(dir); err != nil {
		return err
	}
	if d.home, err = d.paths.Home(); err != nil {
		return err
	}
	d.niced = d.paths.system.Prefer()
	d.tag = d.cfg.Job + "-" + d.cfg.Key.jobTag(d.cfg.Job)
	if d.store = d.cfg.Objects; d.store == nil {
		if d.store, err = openStore(d.ctx, d.cfg.Store, observers{d.meters, &d.trouble}); err != nil {
			return err
		}
	}
	if d.identity, err = NewIdentity(d.cfg.Key, d.cfg.Job, d.me()); err != nil {
		return err
	}
	if d.bells, err = d.paths.memory.Bells(d.paths.Bells()); err != nil {
		hint := "check that /dev/shm can be written"
		if errors.Is(err, wire.ErrFormat) {
			hint = "when no daemon of " + d.paths.Dir + " lives (phalanx status), remove " + d.paths.Bells() + " and start again"
		}
		return &Problem{CodeFailed, fmt.Errorf("make the bells of this host: %w", err), hint}
	}
	if d.procs, err = d.paths.system.Watch(d.log); err != nil {
		return err
	}
	d.bell = d.bells.Bell(2 * d.cfg.Index)
	d.engine = host.New(d.log, host.Options{Inline: inlineBytes, GroupTimeout: groupPatience})
	if err := d.listen(dir); err != nil {
		return err
	}
	if err := d.askSeeds(dir); err != nil {
		return err
	}
	d.roster = newRoster(d.paths, d.cfg.Join, d.self)
	d.peers = newPeerLinks(d)
	d.kv = newStores(d)
	if err := d.unfound(dir); err != nil {
		return err
	}
	d.raft, err = consensus.Open(consensus.Config{
		Dir: filepath.Join(dir, "raft"), JobID: d.tag, Machine: d.replica, Transport: raftLayer{d.listener.Of(ProtoRaft), d},
		Addresses: d.roster.serverAddr, LocalAddr: d.addr(), Logger: d.log,
		Lease: electionLease, FastHeartbeat: electionLease, CommitTimeout: commitTimeout,
		OnApply:   func(consensus.Entry) { d.notifyApplied() },
		OnRestore: func(uint64) { d.notifyApplied() },
		OpenStore: d.cfg.OpenLog,
	})
	if p := keyProblem(err); p != nil {
		return p
	}
	if err != nil {
		return &Problem{CodeFailed, fmt.Errorf("open the log: %w", err), "move " + filepath.Join(dir, "raft") + " aside to come back as a new server"}
	}
	failpoint.Here("raft-opened")
	server := d.raft.ServerID()
	d.server.Store(&server)
	if d.raft.HasState() {
		d.waitLog = time.Now().Add(logWait)
	}
	if err := d.found(); err != nil {
		return err
	}
	if err := d.startGossip(); err != nil {
		d.log.Warn("gossip is off; failures are still found by connections and processes", "error", err)
	}
	d.saver = newSaver(d)
	if err := d.adopt(); err != nil {
		return err
	}
	if err := d.serve(); err != nil {
		return err
	}
	d.ends.Go(d.forward)
	d.up = startUpstream(d)
	failpoint.Here("daemon-started")
	return nil
}

// close stops everything in an order in which nobody calls what is gone: first who asks from outside (API, streams), then
// the engine that uses memory, then the log whose transport is the listener's, then the memory itself.
func (d *Daemon) close() {
	d.cancel(nil)
	ctx, cancel := context.WithTimeout(context.Background(), stopDeadline)
	defer cancel()
	if d.gossip != nil {
		_ = d.gossip.Close()
	}
	if d.engine != nil {
		d.engine.Close()
	}
	if d.raft != nil {
		if err := d.raft.Close(ctx); err != nil {
			d.log.Warn("the log did not close in time", "error", err)
		}
	}
	if d.peers != nil {
		d.peers.close()
	}
	if d.kv != nil {
		d.kv.close()
	}
	if d.listener != nil {
		_ = d.listener.Close()
	}
	d.ends.Wait()
	if d.procs != nil {
		_ = d.procs.Close()
	}
	if l := d.life; l != nil {
		l.retired.Store(true)
		if d.peers != nil { // a closed server does not wait for its handlers
			d.peers.serving.release(l)
		}
		if d.saver != nil {
			d.saver.mu.Lock()
			defer d.saver.mu.Unlock()
		}
		_ = l.unmap()
	}
	d.silence()
	if d.bells != nil {
		_ = d.bells.Unmap()
	}
	if d.lock != nil { // last: a successor must find everything free
		_ = os.Remove(d.paths.DaemonFile(d.cfg.Index))
		_ = d.lock.Close()
	}
}

// lockMember takes the member's lock, which the kernel frees at this process's end.
func (d *Daemon) lockMember(dir string) error {
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return &Problem{CodeFailed, fmt.Errorf("lock the member: %w", err), "check the rights of " + dir}
	}
	for end := time.Now().Add(2 * time.Second); ; {
		if err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err == nil {
			d.lock = f
			break
		}
		if time.Now().After(end) {
			f.Close()
			return &Problem{CodeLocked, fmt.Errorf("member %s has a living daemon", d.me()), "end it, or use another --dir"}
		}
		time.Sleep(5 * time.Millisecond) // a killed predecessor's lock is freed within milliseconds
	}
	return d.checkMachine()
}

// checkMachine refuses a directory that was copied from another machine: its promises are not ours.
func (d *Daemon) checkMachine() error {
	id, err := os.ReadFile("/etc/machine-id")
	if err != nil || len(id) == 0 {
		return nil
	}
	path := filepath.Join(d.paths.Dir, "machine-id")
	old, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) { // the daemons of a host start together: the name appears with the content
		if err := createWhole(path, id); err != nil && !errors.Is(err, os.ErrExist) {
			return &Problem{CodeFailed, fmt.Errorf("mark the directory as this machine's: %w", err), "choose a directory that can be written with --dir"}
		}
		old, err = os.ReadFile(path)
	}
	if err == nil && string(old) != string(id) {
		return &Problem{CodeLocked, fmt.Errorf("%s belongs to another machine", d.paths.Dir), "a copied directory is no identity: start this host with an empty --dir and --join an address of the job"}
	}
	return nil
}

// listen binds the daemon's port: the one it had before if it is free, so that others find it where it was.
func (d *Daemon) listen(dir string) (err error) {
	portFile := filepath.Join(dir, "port")
	port := d.cfg.Port
	if port == 0 {
		if b, err := os.ReadFile(portFile); err == nil {
			port, _ = strconv.Atoi(string(b))
		}
	}
	addr := net.JoinHostPort(d.cfg.Bind, strconv.Itoa(port))
	d.listener, err = Listen(d.cfg.Network, addr, d.identity, d.log)
	if err != nil && port != 0 && d.cfg.Port == 0 {
		d.listener, err = Listen(d.cfg.Network, net.JoinHostPort(d.cfg.Bind, "0"), d.identity, d.log)
	}
	if err != nil {
		return err
	}
	return os.WriteFile(portFile, []byte(strconv.Itoa(d.listener.Addr().Port)), 0o600)
}

// addr is where others dial this daemon.
func (d *Daemon) addr() string {
	ip := d.cfg.Advertise
	if ip == "" {
		ip = d.cfg.Bind
	}
	return net.JoinHostPort(ip, strconv.Itoa(d.listener.Addr().Port))
}

// self is what others know about this daemon.
func (d *Daemon) self() Peer {
	p := Peer{Incarnate: phalanx.Incarnate{Member: d.me()}, Host: d.cfg.Host, Addr: d.addr(), BootID: d.paths.system.BootID(), Home: d.home}
	p.DaemonPID, _ = d.paths.system.Self()
	if s := d.server.Load(); s != nil { // Raft asks for addresses while it opens
		p.Server = *s
	}
	return p
}

func (d *Daemon) notifyApplied() {
	d.applied.Store(true)
	d.wake()
	d.watchers.notify()
}

// serve starts the servers: the unix socket of the trainer and the command line, and HTTP for the other daemons.
func (d *Daemon) serve() error {
	if err := d.serveSocket(); err != nil {
		return err
	}
	// A reader that vanishes while it is written to must not hold a life's memory for ever: a write ends with its deadline.
	api := &http.Server{Handler: d.peerAPI(), ReadHeaderTimeout: 5 * time.Second, WriteTimeout: 30 * time.Second}
	d.ends.Go(func() { _ = api.Serve(plainConns{d.listener.Of(ProtoAPI)}) })
	d.ends.Go(func() { <-d.ctx.Done(); _ = api.Close() })
	d.ends.Go(func() { d.acceptStreams(d.listener.Of(ProtoStream)) })
	d.ends.Go(func() { d.peers.accept(d.listener.Of(ProtoPeer), ProtoPeer) })
	d.ends.Go(func() { d.peers.accept(d.listener.Of(ProtoData), ProtoData) })
	d.ends.Go(func() { d.kv.accept(d.listener.Of(ProtoStore)) })
	d.ends.Go(func() { d.answerTrials(d.listener.Of(ProtoTryPeer)) })
	d.ends.Go(func() { d.answerTrials(d.listener.Of(ProtoTryData)) })
	if err := d.sayWhere(); err != nil {
		d.log.Warn("others of this host do not find this daemon by its file; tries on", "error", err)
	}
	return nil
}

// sayWhere leaves how this daemon is reached on its host.
func (d *Daemon) sayWhere() error {
	start := DaemonFile{Incarnate: d.life.who, Socket: d.paths.Socket(d.cfg.Index), Addr: d.addr()}
	start.PID, start.Start = d.paths.system.Self()
	err := writeJSON(d.paths.DaemonFile(d.cfg.Index), start)
	d.hidden = err != nil
	return err
}

func (d *Daemon) startGossip() error {
	udp, err := d.listener.network.ListenPacket(d.listener.Addr().String())
	if err != nil {
		return err
	}
	d.listener.mark(udp, ProtoGossip)
	transport := membership.NewTransport(udp, d.listener.Of(ProtoGossip), membership.StreamDialerFunc(func(ctx context.Context, addr string) (net.Conn, error) {
		return d.listener.Dial(ctx, addr, ProtoGossip)
	}), d.log)
	meta := membership.Meta{DaemonPort: uint16(d.listener.Addr().Port)}.Encode()
	ip := d.cfg.Advertise
	if ip == "" {
		ip = d.cfg.Bind
	}
	d.gossip, err = membership.StartGossip(membership.GossipConfig{
		Name:     membership.GossipName(phalanx.Incarnate{Member: d.me(), Incarnation: 1}, strconv.FormatInt(time.Now().UnixNano(), 36)),
		BindAddr: d.cfg.Bind, BindPort: d.listener.Addr().Port, AdvertiseAddr: ip, AdvertisePort: d.listener.Addr().Port,
		Key: d.cfg.Key.Gossip(), Label: d.tag, Meta: meta, Seeds: d.cfg.Join, Transport: transport, Logger: d.log,
	})
	return err
}

// raftLayer gives Raft its connections on the one port.
type raftLayer struct {
	net.Listener
	d *Daemon
}

func (r raftLayer) Dial(address consensus.ServerAddress, timeout time.Duration) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(r.d.ctx, timeout)
	defer cancel()
	return r.d.listener.Dial(ctx, string(address), ProtoRaft)
}
