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
	"sync"
	"syscall"
	"time"

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
		SegmentBytes: planSegment(cfg).bytes, Client: "go", Slabs: wire.MaxSlabs,
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
	hc := &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true, // no socket stays open in the trainer
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return c.process.Dial(ctx)
		},
	}}
	for {
		welcome, err := postHello(ctx, hc, body)
		var refusal *wire.Error
		if !errors.As(err, &refusal) || refusal.Code != wire.CodeBusy {
			return welcome, err
		}
		select {
		case <-time.After(helloRetry):
		case <-ctx.Done():
			return wire.Welcome{}, fmt.Errorf("%w: %w", refusal, context.Cause(ctx))
		}
	}
}

func postHello(ctx context.Context, hc *http.Client, body []byte) (wire.Welcome, error) {
	var welcome wire.Welcome
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://phalanx"+wire.HelloPath, bytes.NewReader(body))
	if err != nil {
		return welcome, err
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := hc.Do(request)
	if err != nil {
		return welcome, fmt.Errorf("ask the daemon: %w", err)
	}
	answer, err := io.ReadAll(io.LimitReader(response.Body, maxBodyBytes))
	if err := errors.Join(err, response.Body.Close()); err != nil {
		return welcome, fmt.Errorf("read the daemon's answer: %w", err)
	}
	if response.StatusCode != http.StatusOK {
		refusal := &wire.Error{}
		if json.Unmarshal(answer, refusal) != nil || refusal.Message == "" {
			refusal.Message = fmt.Sprintf("the daemon answered %s", response.Status)
		}
		return welcome, refusal
	}
	if err := json.Unmarshal(answer, &welcome); err != nil {
		return welcome, fmt.Errorf("read the daemon's answer: %w", err)
	}
	return welcome, nil
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
