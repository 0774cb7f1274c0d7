// SPDX-License-Identifier: Apache-2.0

package membership

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/memberlist"
)

// GossipConfig says who this daemon is in gossip and where it listens.
type GossipConfig struct {
	// Name is HOST/INDEX.INCARNATION-NONCE (GossipName). It is never reused.
	Name string
	// BindAddr and BindPort are used only without a Transport: port 0 asks the kernel for one.
	BindAddr string
	BindPort int
	// AdvertiseAddr is the IP address that others dial; "" takes the bound one. AdvertisePort 0 takes the bound port.
	AdvertiseAddr string
	AdvertisePort int
	// Key is the AES-256 key, 32 bytes. Whoever has it is trusted to gossip anything.
	Key []byte
	// Label is the job's id: packets of other jobs are refused. At most 255 bytes.
	Label string
	// Meta is gossiped with the name, at most MaxMetaBytes.
	Meta []byte
	// Seeds are the first roster, HOST:PORT each. Rejoin replaces it.
	Seeds []string
	// Transport carries packets and streams; nil opens a UDP and a TCP socket of memberlist's own.
	Transport memberlist.Transport
	// Logger takes changes; nil logs nothing.
	Logger *slog.Logger
}

// Validate names the first field that cannot be used.
func (c *GossipConfig) Validate() error {
	switch {
	case c.Name == "" || len(c.Name) > maxNameBytes:
		return fmt.Errorf("gossip name %q: want 1 to %d bytes", c.Name, maxNameBytes)
	case len(c.Key) != 32:
		return fmt.Errorf("gossip key has %d bytes, want 32: make one with phalanx key new", len(c.Key))
	case len(c.Label) > memberlist.LabelMaxSize:
		return fmt.Errorf("gossip label has %d bytes, at most %d fit", len(c.Label), memberlist.LabelMaxSize)
	case len(c.Meta) > MaxMetaBytes:
		return fmt.Errorf("gossip metadata has %d bytes, at most %d fit", len(c.Meta), MaxMetaBytes)
	}
	return nil
}

// Timings. Probes, timeout and suspicion see a dead member in about two seconds, at the price of calling one dead that was
// off the CPU for as long: a hint may be wrong. Faster ones saturated the CPU with false deaths under load, and cost an idle
// daemon more than everything else that it does.
const (
	probeInterval    = 500 * time.Millisecond
	probeTimeout     = 200 * time.Millisecond
	suspicionMult    = 3
	suspicionMaxMult = 2
	gossipInterval   = 200 * time.Millisecond
	pushPullInterval = 5 * time.Second
	streamTimeout    = 2 * time.Second
	rejoinInterval   = 5 * time.Second
	updateTimeout    = time.Second
)

// MemberInfo is a copy of what gossip says about one living member.
type MemberInfo struct {
	Name string
	Addr string // IP:PORT
	Meta []byte
}

// Gossip is this daemon's part in memberlist.
type Gossip struct {
	cfg    GossipConfig
	log    *slog.Logger
	list   *memberlist.Memberlist
	view   *gossipView
	self   atomic.Value  // []byte: flag byte and metadata, as memberlist asks for them
	rejoin chan []string // 1: only the newest roster matters
	cancel context.CancelFunc
	ended  chan struct{} // closed when the reconciler is over

	// turn is held by the one of Leave, UpdateMeta and Close that runs: memberlist panics when it leaves after its
	// shutdown. Each of them is bounded by a timeout.
	turn   sync.Mutex
	left   bool
	closed bool
}

// StartGossip opens the sockets, announces this member and starts to join the seeds. It does not wait for them: a first
// member has nobody to join. It owns the Transport from the call on, also when it fails.
func StartGossip(cfg GossipConfig) (*Gossip, error) {
	if err := cfg.Validate(); err != nil {
		abandon(cfg.Transport)
		return nil, fmt.Errorf("start gossip: %w", err)
	}
	cfg.Key = slices.Clone(cfg.Key)
	g := &Gossip{
		cfg:    cfg,
		log:    orDiscard(cfg.Logger),
		view:   newGossipView(cfg.Name),
		rejoin: make(chan []string, 1),
		ended:  make(chan struct{}),
	}
	g.self.Store(packMeta(0, cfg.Meta))
	list, err := memberlist.Create(g.listConfig())
	if err != nil {
		abandon(cfg.Transport) // Create leaves a given transport open on some of its errors
		return nil, fmt.Errorf("start gossip as %s: %w", cfg.Name, err)
	}
	g.list = list
	ctx, cancel := context.WithCancel(context.Background())
	g.cancel = cancel
	go g.reconcile(ctx, slices.Clone(cfg.Seeds))
	return g, nil
}

// abandon shuts a transport down that nobody will use.
func abandon(t memberlist.Transport) {
	if t != nil {
		_ = t.Shutdown()
	}
}

func (g *Gossip) listConfig() *memberlist.Config {
	c := memberlist.DefaultLANConfig()
	c.Name = g.cfg.Name
	c.Label = g.cfg.Label
	c.Transport = g.cfg.Transport
	c.BindAddr = cmp.Or(g.cfg.BindAddr, "127.0.0.1")
	c.BindPort = g.cfg.BindPort
	c.AdvertiseAddr = g.cfg.AdvertiseAddr
	c.AdvertisePort = cmp.Or(g.cfg.AdvertisePort, g.cfg.BindPort)
	c.SecretKey = g.cfg.Key
	c.GossipVerifyIncoming = true
	c.GossipVerifyOutgoing = true
	// LZW saturates the CPU when members join in a burst, and never lets go: a storm of false deaths feeds itself.
	c.EnableCompression = false
	c.ProbeInterval = probeInterval
	c.ProbeTimeout = probeTimeout
	c.SuspicionMult = suspicionMult
	c.SuspicionMaxTimeoutMult = suspicionMaxMult
	c.GossipInterval = gossipInterval
	// Without it a burst of joins misses members until the next exchange, 30 s by default.
	c.PushPullInterval = pushPullInterval
	c.TCPTimeout = streamTimeout
	c.DNSConfigPath = ""
	c.LogOutput = nil
	c.Logger = listLogger(g.log)
	c.Delegate = selfDelegate{&g.self}
	c.Events = g.view
	c.Alive = g.view
	return c
}

// Hints returns what gossip saw of others, in order. When the reader falls behind, the oldest are dropped and counted;
// Members is always complete. Close closes the channel.
func (g *Gossip) Hints() <-chan Hint { return g.view.hints }

// DroppedHints counts hints that were dropped because nobody read them.
func (g *Gossip) DroppedHints() uint64 { return g.view.dropped.Load() }

// Members returns copies of what gossip says of the living members but this one, ordered by name.
func (g *Gossip) Members() []MemberInfo { return g.view.members() }

// Addr returns the address that this member advertises, IP:PORT.
func (g *Gossip) Addr() string { return g.view.selfAddr() }

// HealthScore is memberlist's opinion of this daemon itself: 0 is healthy, more means that it was late to its own probes
// and its word on others weighs less.
func (g *Gossip) HealthScore() int { return g.list.GetHealthScore() }

// UpdateMeta replaces this member's metadata and announces it. It waits at most a second for the announcement to leave;
// one that did not travels with the next exchange of states.
func (g *Gossip) UpdateMeta(meta []byte) error {
	if len(meta) > MaxMetaBytes {
		return fmt.Errorf("update gossip metadata: %d bytes, at most %d fit", len(meta), MaxMetaBytes)
	}
	g.turn.Lock()
	defer g.turn.Unlock()
	if g.closed || g.left {
		return fmt.Errorf("update gossip metadata: %w", ErrClosed)
	}
	g.self.Store(packMeta(0, meta))
	if err := g.list.UpdateNode(updateTimeout); err != nil {
		g.log.Debug("gossip metadata goes out with the next exchange", "err", err)
	}
	return nil
}

// Rejoin replaces the roster: the addresses, HOST:PORT, at which members ought to be. The reconciler joins those that
// gossip does not show alive, now and every five seconds. It never waits.
func (g *Gossip) Rejoin(addrs []string) {
	next := slices.Clone(addrs)
	for {
		select {
		case g.rejoin <- next:
			return
		default:
		}
		select {
		case <-g.rejoin: // an older roster that was not taken yet
		default:
		}
	}
}

// Leave tells the others that this member goes on purpose, and waits up to timeout for the words to leave. Gossip goes
// on until Close. A second call does nothing.
func (g *Gossip) Leave(timeout time.Duration) error {
	g.turn.Lock()
	defer g.turn.Unlock()
	if g.closed {
		return fmt.Errorf("leave gossip: %w", ErrClosed)
	}
	if g.left {
		return nil
	}
	g.left = true
	// memberlist does not tell its listeners whether a member left or died, so the metadata says it first.
	meta := g.self.Load().([]byte)
	g.self.Store(packMeta(flagLeaving, meta[1:]))
	first := g.list.UpdateNode(max(timeout/2, time.Millisecond))
	if err := g.list.Leave(max(timeout/2, time.Millisecond)); err != nil {
		return fmt.Errorf("leave gossip: %w", errors.Join(first, err))
	}
	return nil
}

// Close ends the reconciler, then memberlist with its sockets, and closes Hints. Without Leave the others see a death.
func (g *Gossip) Close() error {
	// First of all: a running join holds nothing that Leave or UpdateMeta need, but should not go on.
	g.cancel()
	g.turn.Lock()
	defer g.turn.Unlock()
	if g.closed {
		return nil
	}
	g.closed = true
	// The sockets before the reconciler: a join in flight fails at once on a closed transport instead of at its timeout.
	err := g.list.Shutdown()
	<-g.ended
	g.view.close()
	if err != nil {
		return fmt.Errorf("close gossip: %w", err)
	}
	return nil
}
