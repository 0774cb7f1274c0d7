// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"time"

	"phalanx"
	"phalanx/client/wire"
	"phalanx/elastic"
	"phalanx/internal/failpoint"
)

// serving lends the own trainer's state, or a slab, to members that heal. Requests come over HTTP from other daemons; the
// trainer copies from its registered memory into the serve ring while it waits.
type serving struct {
	d *Daemon

	mu     sync.Mutex
	life   *life
	gen    phalanx.Generation // requests of older generations are refused
	lends  bool               // the life had a segment at the fence; one that gets it later is read from after the next
	cancel context.CancelFunc // ends the requests under way
	ctx    context.Context
	users  sync.WaitGroup
	free   chan int
	slots  [wire.ServeCount]chan struct{}
	seq    uint64
}

func newServing(d *Daemon) *serving {
	s := &serving{d: d, free: make(chan int, wire.ServeCount), seq: sequenceBase()}
	for i := range s.slots {
		s.slots[i] = make(chan struct{}, 1) // 1: only "look again" matters
		s.free <- i
	}
	s.ctx, s.cancel = context.WithCancel(d.ctx)
	return s
}

// fence ends all serving for generations before g: a donor acts on no newer entry while it serves.
func (s *serving) fence(g phalanx.Generation) {
	s.mu.Lock()
	s.cancel()
	s.ctx, s.cancel = context.WithCancel(s.d.ctx)
	s.gen, s.life = g, s.d.life
	s.lends = s.life != nil && s.life.segment != nil
	s.mu.Unlock()
}

// release waits until nothing reads the life's memory any more.
func (s *serving) release(l *life) {
	s.mu.Lock()
	if s.life == l {
		s.cancel()
		s.life = nil
	}
	s.mu.Unlock()
	s.users.Wait()
}

// moved wakes the requests that wait for the trainer. The loop calls it.
func (s *serving) moved() {
	for i := range s.slots {
		select {
		case s.slots[i] <- struct{}{}:
		default:
		}
	}
}

// enter admits a request of a generation.
func (s *serving) enter(g phalanx.Generation) (*life, context.Context, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.life == nil || s.gen != g || !s.lends {
		return nil, nil, fmt.Errorf("serve %s: %w", g, phalanx.ErrStaleGeneration)
	}
	s.users.Add(1)
	return s.life, s.ctx, nil
}

// ask lets the trainer do one request and returns the bytes in its segment through use, before the place is free again.
func (s *serving) ask(ctx context.Context, v wire.Serve, label phalanx.Label, use func([]byte) error) error {
	l, fence, err := s.enter(v.Generation)
	if err != nil {
		return err
	}
	defer s.users.Done()
	var i int
	select {
	case i = <-s.free:
	case <-ctx.Done():
		return ctx.Err()
	case <-fence.Done():
		return phalanx.ErrStaleGeneration
	}
	defer func() { s.free <- i }()
	if applied, n := l.page.ReadApplied(); n == 0 || !applied.Valid || applied.Label() != label {
		return fmt.Errorf("the trainer does not stand at %s: %w", label, errNotYet)
	}
	s.mu.Lock()
	s.seq++
	v.Sequence = s.seq
	s.mu.Unlock()
	v.SegmentOffset = l.serveSlot(i)
	l.page.WriteServe(i, v)
	failpoint.Here("donor-asked-trainer")
	s.d.ringTrainer()
	for {
		if got, status := wire.ParseAnswer(l.page.Served(i)); got == v.Sequence {
			if status != wire.StatusOK {
				return fmt.Errorf("the trainer did not serve: %s: %w", status, errNotYet)
			}
			// The trainer may have gone on between the first look and its copy: then these are bytes of another state.
			if applied, _ := l.page.ReadApplied(); !applied.Valid || applied.Label() != label || fence.Err() != nil {
				return fmt.Errorf("the trainer stands at %s no more: %w", label, errNotYet)
			}
			failpoint.Here("donor-serving")
			return use(l.segment.Bytes()[v.SegmentOffset : v.SegmentOffset+v.Length])
		}
		select {
		case <-s.slots[i]:
		case <-ctx.Done():
			return ctx.Err()
		case <-fence.Done():
			return phalanx.ErrStaleGeneration
		}
	}
}

// errNotYet: the donor does not stand at the wanted state yet, for instance because it is still rolling forward.
var errNotYet = errors.New("not there yet")

// handleState serves GET /v1/state: digests without a tensor, else bytes.
func (d *Daemon) handleState(w http.ResponseWriter, r *http.Request) {
	q, err := parseStateQuery(r.URL.Query())
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), 15*time.Second)
	defer cancel()
	write := func(b []byte) error {
		n, err := w.Write(b)
		d.meters.healed.WithLabelValues("served").Add(float64(n))
		return err
	}
	if q.slab {
		err = d.saver.serveSlab(ctx, q, write)
	} else {
		v := wire.Serve{Generation: q.gen, Kind: wire.ServeKindRead, Tensor: q.tensor, Offset: q.off, Length: q.length}
		if q.tensor < 0 {
			v.Kind, v.Tensor, v.Offset, v.Length = wire.ServeKindDigests, 0, 0, int64(q.count)*digestSize
		}
		err = d.peers.serving.ask(ctx, v, q.label, write)
	}
	switch {
	case err == nil:
	case errors.Is(err, errNotYet):
		http.Error(w, err.Error(), http.StatusConflict)
	case errors.Is(err, errNoSlab):
		http.Error(w, err.Error(), http.StatusNotFound)
	case errors.Is(err, phalanx.ErrStaleGeneration):
		http.Error(w, err.Error(), http.StatusGone)
	default:
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
	}
}

// stateQuery asks for a part of a state.
type stateQuery struct {
	gen         phalanx.Generation
	label       phalanx.Label
	slab        bool
	tensor      int // -1: the digests of all count tensors
	count       int
	off, length int64
}

func (q stateQuery) values() url.Values {
	v := url.Values{}
	v.Set("generation", q.gen.String())
	v.Set("step", strconv.FormatUint(uint64(q.label.Step), 10))
	v.Set("made_in", q.label.Generation.String())
	v.Set("digest", q.label.Digest.String())
	v.Set("coordinate", strconv.Itoa(q.label.Coordinate))
	v.Set("slab", strconv.FormatBool(q.slab))
	v.Set("tensor", strconv.Itoa(q.tensor))
	v.Set("count", strconv.Itoa(q.count))
	v.Set("off", strconv.FormatInt(q.off, 10))
	v.Set("length", strconv.FormatInt(q.length, 10))
	return v
}

func parseStateQuery(v url.Values) (q stateQuery, err error) {
	var errs []error
	note := func(err error) { errs = append(errs, err) }
	number := func(name string) int64 {
		n, err := strconv.ParseInt(v.Get(name), 10, 64)
		note(err)
		return n
	}
	q.gen, err = phalanx.ParseGeneration(v.Get("generation"))
	note(err)
	q.label.Generation, err = phalanx.ParseGeneration(v.Get("made_in"))
	note(err)
	q.label.Digest, err = phalanx.ParseDigest(v.Get("digest"))
	note(err)
	q.slab, err = strconv.ParseBool(v.Get("slab"))
	note(err)
	q.label.Step, q.label.Coordinate = phalanx.Step(number("step")), int(number("coordinate"))
	q.tensor, q.count, q.off, q.length = int(number("tensor")), int(number("count")), number("off"), number("length")
	if err := errors.Join(errs...); err != nil {
		return q, err
	}
	if q.off < 0 || q.off > math.MaxInt64-ringChunk || q.length < 0 || q.length > ringChunk || q.count < 0 || q.count > ringChunk/digestSize {
		return q, errors.New("range out of bounds")
	}
	return q, nil
}

// donor reads a state from another member's daemon.
type donor struct {
	d       *Daemon
	who     phalanx.Incarnate
	addr    string
	do      elastic.Heal
	tensors int
}

// Member says who it is.
func (x *donor) Member() phalanx.Incarnate { return x.who }

// Read fills p with bytes of a tensor.
func (x *donor) Read(ctx context.Context, tensor int, off int64, p []byte) error {
	return x.get(ctx, stateQuery{tensor: tensor, off: off, length: int64(len(p))}, p)
}

// Digests returns the digests of all tensors.
func (x *donor) Digests(ctx context.Context) ([]phalanx.Digest, error) {
	b := make([]byte, x.tensors*digestSize)
	if err := x.get(ctx, stateQuery{tensor: -1, count: x.tensors}, b); err != nil {
		return nil, err
	}
	out := make([]phalanx.Digest, x.tensors)
	for i := range out {
		out[i] = phalanx.Digest{binary.LittleEndian.Uint64(b[i*digestSize:]), binary.LittleEndian.Uint64(b[i*digestSize+8:])}
	}
	return out, nil
}

// get asks until the donor stands where it should, or ctx ends.
func (x *donor) get(ctx context.Context, q stateQuery, p []byte) error {
	q.gen, q.label, q.slab = x.do.Generation, x.do.Label, x.do.Source.Kind == elastic.FromSlab
	for {
		again, err := x.try(ctx, q, p)
		if err == nil || !again {
			return err
		}
		select {
		case <-time.After(5 * time.Millisecond): // it rolls forward, or has not read the entry yet
		case <-ctx.Done():
			return err
		}
	}
}

func (x *donor) try(ctx context.Context, q stateQuery, p []byte) (again bool, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+x.addr+"/v1/state?"+q.values().Encode(), nil)
	if err != nil {
		return false, err
	}
	res, err := x.d.peers.http.Do(req)
	if err != nil {
		return false, err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		words, _ := io.ReadAll(io.LimitReader(res.Body, 500))
		return res.StatusCode == http.StatusConflict || res.StatusCode == http.StatusGone, fmt.Errorf("%s: %s: %s", x.who.Member, res.Status, words)
	}
	if _, err := io.ReadFull(res.Body, p); err != nil {
		return false, fmt.Errorf("%s: %w", x.who.Member, err)
	}
	return false, nil
}

// apiClient speaks HTTP inside the job's mutual TLS. It ignores proxies.
func (d *Daemon) apiClient() *http.Client {
	return &http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, addr string) (net.Conn, error) {
			return d.listener.Dial(ctx, addr, ProtoAPI)
		},
		MaxIdleConnsPerHost: 8, IdleConnTimeout: 30 * time.Second, DisableCompression: true,
	}}
}
