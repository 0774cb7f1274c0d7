// SPDX-License-Identifier: Apache-2.0

package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"sync"
	"syscall"
	"time"

	"phalanx"
	"phalanx/client/wire"
	"phalanx/internal/failpoint"
)

// SocketVariable is the environment variable with the path of the daemon's socket.
const SocketVariable = "PHALANX_SOCKET"

// Dial finds the daemon that started this process. It fails when there is none.
func Dial(ctx context.Context) (*Client, error) {
	if err := AwaitPlace(ctx); err != nil {
		return nil, fmt.Errorf("dial: %w", err)
	}
	socket := os.Getenv(SocketVariable)
	if socket == "" {
		return nil, fmt.Errorf("dial: %s is not set; start this command with phalanx run -- COMMAND", SocketVariable)
	}
	p, err := thisProcess(socket)
	if err != nil {
		return nil, fmt.Errorf("dial: %w", err)
	}
	return p.DialDaemon(ctx)
}

// Hello registers the trainer, maps what the daemon prepared and announces the initial state, that of step 0. It also
// installs handlers for TERM and INT that ask to leave in order; a second INT ends the process. While the daemon is not
// ready it asks again until ctx ends.
func (c *Client) Hello(ctx context.Context, cfg Config) error {
	if c.page != nil {
		return fmt.Errorf("hello: said already: %w", ErrIllegal)
	}
	infos, err := cfg.validate()
	if err != nil {
		return fmt.Errorf("hello: %w", err)
	}
	p := c.process
	welcome, err := c.sayHello(ctx, wire.Hello{
		PID: p.PID, Start: p.Start, ProtocolMin: wire.Protocol, ProtocolMax: wire.Protocol, Spec: cfg.Spec, State: infos,
		Coordinate: cfg.Pin, SegmentBytes: planSegment(cfg).bytes, Client: "go", Slabs: wire.MaxSlabs,
	})
	if err != nil {
		return fmt.Errorf("hello: %w", err)
	}
	if welcome.Protocol != wire.Protocol {
		return fmt.Errorf("hello: the daemon chose protocol %d, this is %d; run daemon and client of one release: %w", welcome.Protocol, wire.Protocol, wire.ErrVersion)
	}
	if diff := welcome.Spec.Diff(cfg.Spec); diff != "" {
		return fmt.Errorf("hello: the job has another spec: %s; start with the job's settings", diff)
	}
	m, err := c.mapMemory(welcome, cfg.Logger)
	if err == nil {
		m.TrainerStart, m.Alive, m.BoottimeNS = p.Start, p.Alive, p.BoottimeNS
		err = c.attach(cfg, infos, m)
	}
	if err != nil {
		return fmt.Errorf("hello: %w", errors.Join(err, c.Close()))
	}
	if p.Pulse != nil {
		end, err := p.Pulse(m.Page)
		if err == nil {
			c.closes = append(c.closes, end)
		} else {
			c.log.Warn("the end of this process will be seen later than it could", "error", err)
		}
	}
	if p.Signals {
		c.closes = append(c.closes, c.watchSignals())
	}
	failpoint.Here("client-attached")
	return nil
}

const (
	helloRetry   = 100 * time.Millisecond
	maxBodyBytes = 1 << 20
)

func (c *Client) sayHello(ctx context.Context, hello wire.Hello) (wire.Welcome, error) {
	body, err := json.Marshal(hello)
	if err != nil {
		return wire.Welcome{}, fmt.Errorf("encode: %w", err)
	}
	return askDaemon[wire.Welcome](ctx, c.process, http.MethodPost, wire.HelloPath, body)
}

// Place asks the daemon at which coordinate of groups of the given size this process is to sit, before it makes the shard of the
// model that belongs there. Config.Pin takes the answer, which stays the same for this process. While nobody can tell yet it asks
// again until ctx ends.
func (c *Client) Place(ctx context.Context, groupSize int) (coordinate int, err error) {
	path := wire.PlacePath + "?group_size=" + strconv.Itoa(groupSize)
	place, err := askDaemon[wire.PlaceAnswer](ctx, c.process, http.MethodGet, path, nil)
	if err != nil {
		return 0, fmt.Errorf("place in groups of %d: %w", groupSize, err)
	}
	if !phalanx.PinTo(place.Coordinate).Valid(groupSize) || place.Coordinate < 0 {
		return 0, fmt.Errorf("place in groups of %d: the daemon answered %d; run daemon and client of one release: %w", groupSize, place.Coordinate, wire.ErrVersion)
	}
	return place.Coordinate, nil
}

// askDaemon asks until the answer is another one than "ask again", or ctx ends.
func askDaemon[A any](ctx context.Context, p Process, method, path string, body []byte) (A, error) {
	hc := &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true, // no socket stays open in the trainer
		DialContext:       func(ctx context.Context, _, _ string) (net.Conn, error) { return p.Dial(ctx) },
	}}
	for {
		answer, err := askOnce[A](ctx, hc, method, path, body)
		var refusal *wire.Error
		if !errors.As(err, &refusal) || refusal.Code != wire.CodeBusy {
			return answer, err
		}
		select {
		case <-time.After(helloRetry):
		case <-ctx.Done():
			return answer, fmt.Errorf("%w: %w", refusal, context.Cause(ctx))
		}
	}
}

func askOnce[A any](ctx context.Context, hc *http.Client, method, path string, body []byte) (out A, err error) {
	request, err := http.NewRequestWithContext(ctx, method, "http://phalanx"+path, bytes.NewReader(body))
	if err != nil {
		return out, err
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := hc.Do(request)
	if err != nil {
		return out, fmt.Errorf("ask the daemon: %w", err)
	}
	answer, err := io.ReadAll(io.LimitReader(response.Body, maxBodyBytes))
	if err := errors.Join(err, response.Body.Close()); err != nil {
		return out, fmt.Errorf("read the daemon's answer: %w", err)
	}
	if response.StatusCode != http.StatusOK {
		refusal := &wire.Error{}
		if json.Unmarshal(answer, refusal) != nil || refusal.Message == "" {
			refusal.Message = fmt.Sprintf("the daemon answered %s", response.Status)
		}
		return out, refusal
	}
	if err := json.Unmarshal(answer, &out); err != nil {
		return out, fmt.Errorf("read the daemon's answer: %w", err)
	}
	return out, nil
}

// mapMemory maps what the daemon prepared. What is mapped is ended by Close, also after an error.
func (c *Client) mapMemory(w wire.Welcome, log *slog.Logger) (Memory, error) {
	page, err := c.process.Memory.OpenPage(w.Page)
	if err != nil {
		return Memory{}, err
	}
	c.closes = append(c.closes, page.Unmap)
	bells, err := c.process.Memory.Bells(w.Bells)
	if err != nil {
		return Memory{}, err
	}
	c.closes = append(c.closes, bells.Unmap)
	m := Memory{Page: page, Own: bells.Bell(page.TrainerBell()), Daemon: bells.Bell(page.DaemonBell())}
	segment, err := c.process.Memory.OpenRegion(w.Segment, true)
	if err != nil {
		return Memory{}, err
	}
	c.closes = append(c.closes, segment.Unmap)
	m.Segment = segment.Bytes()
	slabs := w.Slabs
	if len(slabs) == 0 && w.Slab != "" {
		slabs = []string{w.Slab}
	}
	for _, path := range slabs {
		slab, err := c.process.Memory.OpenRegion(path, true)
		if err != nil {
			return Memory{}, err
		}
		c.closes = append(c.closes, slab.Unmap, populate(slab, log))
		m.Slabs = append(m.Slabs, slab.Bytes())
	}
	return m, nil
}

// populate maps the pages of the slab beside the first steps, so that the first save copies as fast as later ones. The
// returned function ends the goroutine.
func populate(slab *wire.Region, log *slog.Logger) (ended func() error) {
	end := make(chan struct{})
	var group sync.WaitGroup
	group.Go(func() {
		if err := slab.Populate(end); err != nil {
			log.Info("the first save will copy slowly", "error", err)
		}
	})
	return func() error {
		close(end)
		group.Wait()
		return nil
	}
}

// watchSignals turns TERM and INT into the preempt word. The returned function ends the goroutine.
func (c *Client) watchSignals() func() error {
	signals := make(chan os.Signal, 1) // 1: one of them is as good as many
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	end := make(chan struct{})
	var group sync.WaitGroup
	group.Go(func() {
		for {
			select {
			case s := <-signals:
				c.Preempt()
				if s == syscall.SIGINT { // the next one shall end the process as usual
					signal.Stop(signals)
					signal.Notify(signals, syscall.SIGTERM)
				}
			case <-end:
				return
			}
		}
	})
	return func() error {
		signal.Stop(signals)
		close(end)
		group.Wait()
		return nil
	}
}
