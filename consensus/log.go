// SPDX-License-Identifier: Apache-2.0

package consensus

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"
)

// Log is one server of the group. Its methods may be called from any goroutine.
type Log struct {
	cfg    Config
	id     string
	logger *slog.Logger

	raft   *raft.Raft
	store  *guard
	stream *stream
	trans  *transport
	fsm    *fsm

	notify  chan bool             // 16: raft blocks on it; watch drains it and never blocks
	observe chan raft.Observation // 16: raft drops when full; the next one or notify follows
	leaders chan Leadership       // 1: only the last matters
	failed  chan error            // 1: there is one failure

	readyTerm atomic.Uint64 // term of which this server is the leader and has applied the barrier; 0: none
	timeouts  sync.Mutex    // keeps hastened and raft's timeouts together
	hastened  atomic.Bool
	stood     atomic.Uint64 // term in which Stand was heard last
	relaxAt   *time.Timer   // ends an assisted failover that found no leader

	change   chan struct{} // 1: held by the one configuration change or transfer under way
	transfer atomic.Int64  // UnixNano since when the library says that a transfer is in progress; 0: it does not

	failOnce  sync.Once
	closeOnce sync.Once
	closeErr  error
	stop      chan struct{} // closed first by Close and by a failure
	stopOnce  sync.Once
	raftDone  chan struct{}  // closed when every goroutine of raft has ended
	shutdown  func()         // begins the shutdown, once
	tasks     sync.WaitGroup // goroutines of this package

	mu      sync.Mutex // guards the next two, held for lines
	closing bool
	pending sync.WaitGroup // calls whose future raft must still answer
}

// Open opens the store in cfg.Dir, creating it and a random server id when there is none, and starts the server. It does
// not bootstrap: a server without state waits to be added by a leader, or for Bootstrap.
//
// The error is ErrLocked, ErrOtherJob, or of the file system. A damaged store is set aside, with a warning, and the server
// starts empty under a new id.
func Open(cfg Config) (*Log, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("open log: %w", err)
	}
	cfg.setDefaults()
	disk, id, err := openStore(&cfg)
	if err != nil {
		return nil, fmt.Errorf("open log: %w", err)
	}
	if cfg.wrapStore != nil {
		disk = cfg.wrapStore(disk)
	}
	logger := cfg.Logger.With("server", id.ServerID)
	l := &Log{
		cfg: cfg, id: id.ServerID, logger: logger,
		notify:  make(chan bool, 16),
		observe: make(chan raft.Observation, 16),
		leaders: make(chan Leadership, 1),
		failed:  make(chan error, 1),
		change:  make(chan struct{}, 1),
		stop:    make(chan struct{}), raftDone: make(chan struct{}),
		relaxAt: time.NewTimer(time.Hour),
	}
	l.relaxAt.Stop()
	if l.store, err = newGuard(disk, cfg.StoreDeadline, l.fail); err != nil {
		return nil, errors.Join(fmt.Errorf("open log: %w", err), disk.Close())
	}
	l.fsm = &fsm{
		job: cfg.JobID, machine: cfg.Machine, onApply: cfg.OnApply, onRestore: cfg.OnRestore,
		halt: l.fail, opened: l.store.opened,
	}
	if err := l.start(newRaftLogger(logger)); err != nil {
		ctx, cancel := context.WithTimeout(context.Background(), cfg.StoreDeadline)
		defer cancel()
		unused := make(chan struct{})
		close(unused)
		return nil, errors.Join(fmt.Errorf("open log: %w", err), l.store.close(ctx, unused))
	}
	close(l.store.opened)
	l.tasks.Go(l.watch)
	l.tasks.Go(func() { l.store.canary(cfg.canaryInterval, l.stop) })
	if l.alone() {
		l.Hasten() // nobody to wait for
	}
	return l, nil
}

// start makes the transport and raft.
func (l *Log) start(logger *raftLogger) (err error) {
	snapshots, err := openSnapshots(l.cfg.Dir, l.id, logger)
	if err != nil {
		return err
	}
	l.stream = newStream(l.cfg.Transport, l.cfg.LocalAddr)
	network := &raft.NetworkTransportConfig{
		Logger: logger, Stream: l.stream, MaxPool: rpcPool, Timeout: rpcTimeout,
		MaxRPCsInFlight: 1, // the pipeline can stop replicating to a follower while its heartbeats go on
	}
	if l.cfg.Addresses != nil {
		network.ServerAddressProvider = addressProvider{l.id, l.cfg.LocalAddr, l.cfg.Addresses}
	}
	l.trans = newTransport(network)
	c := raft.DefaultConfig()
	c.LocalID = raft.ServerID(l.id)
	c.HeartbeatTimeout, c.ElectionTimeout = l.cfg.Heartbeat, l.cfg.Election
	c.LeaderLeaseTimeout, c.CommitTimeout = l.cfg.Lease, l.cfg.CommitTimeout
	c.MaxAppendEntries = maxAppendEntries
	c.SnapshotThreshold, c.TrailingLogs, c.SnapshotInterval = snapshotThreshold, snapshotTrailing, snapshotInterval
	c.BatchApplyCh = false     // a full buffer would break the deadline of Propose
	c.PreVoteDisabled = false  // a server that was cut off must not end a leader's term when it is back
	c.ShutdownOnRemove = false // the caller decides when to close
	c.NotifyCh = l.notify
	c.Logger = logger
	c.NoLegacyTelemetry = true
	err = callStore(func() (err error) { // raft panics on entries that it cannot read
		l.raft, err = raft.NewRaft(c, l.fsm, l.store, l.store, snapshots, l.trans)
		return err
	})
	if err != nil {
		return errors.Join(err, l.trans.Close())
	}
	l.raft.RegisterObserver(raft.NewObserver(l.observe, false, func(o *raft.Observation) bool {
		_, leader := o.Data.(raft.LeaderObservation)
		return leader
	}))
	l.shutdown = sync.OnceFunc(func() {
		ended := l.raft.Shutdown()
		_ = l.trans.Close()
		go func() {
			_ = ended.Error() // waits for raft's goroutines; ends with them
			close(l.raftDone)
		}()
	})
	return nil
}

// fail stops the server after a failure that it cannot go on with. The connections are closed before it returns: a leader
// that cannot write must fall silent for another to be elected. The store is left to Close.
func (l *Log) fail(err error) {
	l.failOnce.Do(func() {
		<-l.store.opened
		l.logger.Error("consensus stopped", "err", err)
		l.shutdown()
		l.readyTerm.Store(0)
		l.failed <- err
		l.stopOnce.Do(func() { close(l.stop) })
	})
}

// Failed delivers at most one error: the server has stopped and must be closed. ErrDiskStalled, ErrStore,
// ErrTransferStuck, or what a Halter said.
func (l *Log) Failed() <-chan error { return l.failed }

// ServerID returns the random id of this server, kept in its log store.
func (l *Log) ServerID() string { return l.id }

// HasState reports whether this server ever took part in a group: it has a term, entries or a snapshot.
func (l *Log) HasState() bool { return l.raft.LastIndex() > 0 || l.raft.CurrentTerm() > 0 }

// Bootstrap makes this server the only voter of a new group. ErrHasState when state of the job exists or existed here.
func (l *Log) Bootstrap() error {
	if l.HasState() || setAside(l.cfg.Dir) {
		return fmt.Errorf("bootstrap %s: %w", l.cfg.Dir, ErrHasState)
	}
	done, err := l.enter()
	if err != nil {
		return fmt.Errorf("bootstrap: %w", err)
	}
	configuration := raft.Configuration{Servers: []raft.Server{
		{Suffrage: raft.Voter, ID: raft.ServerID(l.id), Address: raft.ServerAddress(l.cfg.LocalAddr)},
	}}
	ctx, cancel := context.WithTimeout(context.Background(), defaultWait)
	defer cancel()
	err = l.await(ctx, done, func() error { return l.raft.BootstrapCluster(configuration).Error() })
	if errors.Is(err, raft.ErrCantBootstrap) {
		err = ErrHasState
	}
	if err != nil {
		return fmt.Errorf("bootstrap: %w", err)
	}
	l.Hasten() // nobody to wait for
	return nil
}

// alone reports whether this server is the only voter.
func (l *Log) alone() bool {
	voters := 0
	for _, s := range l.raft.GetConfiguration().Configuration().Servers {
		if s.Suffrage == raft.Voter {
			if string(s.ID) != l.id {
				return false
			}
			voters++
		}
	}
	return voters == 1
}

// enter announces a call that raft must answer; Close waits for those. The returned function ends it.
func (l *Log) enter() (done func(), err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	select {
	case <-l.stop:
		return nil, ErrClosed
	default:
	}
	if l.closing {
		return nil, ErrClosed
	}
	l.pending.Add(1)
	return l.pending.Done, nil
}

// await runs f, which waits for a future, until it is answered, ctx ends, or the server stops. done is called when f ends.
func (l *Log) await(ctx context.Context, done func(), f func() error) error {
	answer := make(chan error, 1) // 1: nobody may be waiting
	go func() {
		defer done()
		answer <- f()
	}()
	select {
	case err := <-answer:
		return err
	case <-ctx.Done():
		return ctx.Err()
	case <-l.raftDone:
		select { // raft answers most before it ends
		case err := <-answer:
			return err
		default:
			return ErrClosed
		}
	}
}

// Close stops the server: no new calls, those under way get a moment, connections are closed, raft ends, and the store is
// closed last. When ctx ends first the rest goes on by itself, and the error says what was not over.
//
// It does not hand leadership over; call Transfer before.
func (l *Log) Close(ctx context.Context) error {
	l.closeOnce.Do(func() { l.closeErr = l.close(ctx) })
	return l.closeErr
}

func (l *Log) close(ctx context.Context) error {
	ctx, cancel := withDefaultWait(ctx)
	defer cancel()
	l.mu.Lock()
	l.closing = true
	l.mu.Unlock()
	// raft never answers what it has committed but not applied when it shuts down, so it gets a moment to apply.
	answered := make(chan struct{})
	go func() {
		l.pending.Wait()
		close(answered)
	}()
	moment := time.NewTimer(l.cfg.Heartbeat)
	defer moment.Stop()
	select {
	case <-answered:
	case <-moment.C:
	case <-ctx.Done():
	case <-l.raftDone:
	}
	l.stopOnce.Do(func() { close(l.stop) })
	l.shutdown()
	l.readyTerm.Store(0)
	var errs []error
	select {
	case <-l.raftDone:
	case <-ctx.Done():
		errs = append(errs, fmt.Errorf("close log: raft has not ended: %w", ctx.Err()))
	}
	if err := l.store.close(ctx, l.raftDone); err != nil {
		errs = append(errs, fmt.Errorf("close log: %w", err))
	}
	l.relaxAt.Stop()
	l.tasks.Wait() // watch and canary end on stop
	return errors.Join(errs...)
}

func withDefaultWait(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, defaultWait)
}
