// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"phalanx"
	"phalanx/client/wire"
)

// coldDaemon answers hello over a real socket with real files.
type coldDaemon struct {
	page    *wire.Page
	bells   *wire.Bells
	welcome wire.Welcome
	hello   atomic.Pointer[wire.Hello]
	answer  func(w http.ResponseWriter) bool // true: answered, nil: welcome
}

func newColdDaemon(t *testing.T) *coldDaemon {
	t.Helper()
	dir := t.TempDir()
	d := &coldDaemon{}
	at := func(name string) string { return filepath.Join(dir, name) }
	var err error
	if d.page, err = wire.CreatePage(at("page"), 4, 5); err != nil {
		t.Fatal(err)
	}
	if d.bells, err = wire.CreateBells(at("bells")); err != nil {
		t.Fatal(err)
	}
	segment, err := wire.CreateRegion(at("seg"), 1<<16)
	if err != nil {
		t.Fatal(err)
	}
	slab, err := wire.CreateRegion(at("slab"), 1<<13)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = errors.Join(d.page.Unmap(), d.bells.Unmap(), segment.Unmap(), slab.Unmap()) })
	d.welcome = wire.Welcome{Member: "host/2", Incarnation: 1, Page: at("page"), Bells: at("bells"), DaemonBell: 4, TrainerBell: 5,
		Segment: at("seg"), SegmentBytes: 1 << 16, Slab: at("slab"), SlabBytes: 1 << 13, Protocol: wire.Protocol, Spec: testSpec()}
	start, err := wire.ProcessStart(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	d.page.WriteIdentity(wire.Identity{Member: "host/2", Incarnation: 1, DaemonPID: os.Getpid(), DaemonStart: start})

	listener, err := net.Listen("unix", at("socket"))
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: d, ReadHeaderTimeout: 10 * time.Second}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(listener) // ends by Close
	}()
	t.Cleanup(func() {
		_ = server.Close()
		<-done
	})
	t.Setenv(SocketVariable, at("socket"))
	return d
}

func (d *coldDaemon) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	var hello wire.Hello
	if q.URL.Path != wire.HelloPath || q.Method != http.MethodPost || json.NewDecoder(q.Body).Decode(&hello) != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	d.hello.Store(&hello)
	if d.answer != nil && d.answer(w) {
		return
	}
	_ = json.NewEncoder(w).Encode(d.welcome)
}

func refuse(w http.ResponseWriter, status int, e wire.Error) bool {
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(e)
	return true
}

func deadline(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func testConfig() Config {
	r := &rig{w: make([]float32, 5), count: make([]int64, 1)}
	return r.config()
}

// A whole step over real files and futexes, with a daemon that is busy at first.
func TestHelloAndStepOverFiles(t *testing.T) {
	d := newColdDaemon(t)
	asked := 0
	d.answer = func(w http.ResponseWriter) bool {
		asked++
		return asked < 3 && refuse(w, http.StatusConflict, wire.Error{Message: "forming", Code: wire.CodeBusy})
	}
	ctx := deadline(t)
	c, err := Dial(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Hello(ctx, testConfig()); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}()
	if h := d.hello.Load(); asked != 3 || h.PID != os.Getpid() || len(h.State) != 2 || h.SegmentBytes <= 0 || h.SegmentBytes%64 != 0 || h.Client != "go" {
		t.Errorf("asked %d times, hello %+v", asked, h)
	}
	if err := c.Hello(ctx, testConfig()); !errors.Is(err, ErrIllegal) {
		t.Errorf("second hello: %v", err)
	}
	ended := make(chan error, 1) // 1: one result
	go func() { ended <- playStep(d) }()
	if _, err := c.Begin(ctx); err != nil {
		t.Fatal(err)
	}
	if err := c.Barrier(ctx); err != nil {
		t.Fatal(err)
	}
	if ok, err := c.Vote(ctx, Vote{OK: true, Digest: digest1}); !ok || err != nil {
		t.Fatal(ok, err)
	}
	if err := c.Apply(); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err != nil {
		t.Fatal(err)
	}

	if asked != 3 {
		t.Errorf("a step asked the socket: %d requests", asked)
	}

	// TERM asks to leave; the process and the client go on.
	if err := syscall.Kill(os.Getpid(), syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	bell := d.bells.Bell(4)
	for seen := bell.Count(); d.page.Preempt() != 1; seen = bell.Wait(seen, time.Second) {
		if ctx.Err() != nil {
			t.Fatal("TERM did not set the preempt word")
		}
	}
}

// playStep is the daemon of one step: it waits on its bell for what the trainer writes.
func playStep(d *coldDaemon) error {
	mine, trainer := d.bells.Bell(4), d.bells.Bell(5)
	until := func(what string, ok func() bool) error {
		for end := time.Now().Add(20 * time.Second); ; {
			seen := mine.Count()
			if ok() {
				return nil
			}
			if time.Now().After(end) {
				return errors.New("no " + what)
			}
			mine.Wait(seen, time.Second)
		}
	}
	if err := until("begin", func() bool { b, _ := d.page.ReadBegin(); return b.Waiting }); err != nil {
		return err
	}
	d.page.WriteSeat(wire.Seat{Generation: generation(1), Action: wire.ActionRun, World: 1, GroupSize: 1, SlotEnd: 8, SlotCount: 8, LastStep: testLast})
	trainer.Ring()
	if err := until("barrier", func() bool { return d.page.RingHead() == 1 }); err != nil {
		return err
	}
	d.page.CompleteDescriptor(1, wire.StatusOK)
	trainer.Ring()
	if err := until("vote", func() bool { v, _ := d.page.ReadVoteRequest(); return v.OK && v.Step == 1 }); err != nil {
		return err
	}
	d.page.WriteCommit(wire.Commit{Generation: generation(1), Step: 1})
	trainer.Ring()
	return until("label", func() bool { a, _ := d.page.ReadApplied(); return a.Step == 1 && a.Valid })
}

func TestHelloRefused(t *testing.T) {
	for name, c := range map[string]struct {
		prepare func(d *coldDaemon)
		words   string
	}{
		"spec differs": {func(d *coldDaemon) {
			d.answer = func(w http.ResponseWriter) bool {
				return refuse(w, http.StatusConflict, wire.Error{Message: "slots is 8, the job has 16", Hint: "start with --slots 16", Code: wire.CodeSpecDiffers})
			}
		}, "--slots 16"},
		"no words": {func(d *coldDaemon) {
			d.answer = func(w http.ResponseWriter) bool { w.WriteHeader(http.StatusInternalServerError); return true }
		}, "500"},
		"another spec": {func(d *coldDaemon) { d.welcome.Spec.Seed++ }, "seed"},
		"protocol":     {func(d *coldDaemon) { d.welcome.Protocol = 99 }, "protocol 99"},
		"no page":      {func(d *coldDaemon) { d.welcome.Page += ".gone" }, "no such file"},
		"small":        {func(d *coldDaemon) { d.welcome.Segment = d.welcome.Slab; d.welcome.Slab = d.welcome.Page }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			d := newColdDaemon(t)
			c.prepare(d)
			ctx := deadline(t)
			client, err := Dial(ctx)
			if err != nil {
				t.Fatal(err)
			}
			cfg := testConfig()
			if name == "small" {
				cfg.ExtraSegmentBytes = 1 << 20
			}
			err = client.Hello(ctx, cfg)
			if err == nil || !strings.Contains(err.Error(), c.words) {
				t.Errorf("got %v, want something with %q", err, c.words)
			}
			if err := client.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestDialWithoutDaemon(t *testing.T) {
	t.Setenv(SocketVariable, "")
	if _, err := Dial(t.Context()); err == nil || !strings.Contains(err.Error(), "phalanx run") {
		t.Errorf("no socket: %v", err)
	}
	t.Setenv(SocketVariable, filepath.Join(t.TempDir(), "none"))
	if _, err := Dial(t.Context()); err == nil {
		t.Error("a socket that is not there was dialed")
	}
}

func TestConfigRefused(t *testing.T) {
	for name, change := range map[string]func(*Config){
		"no optimizer":   func(c *Config) { c.Apply = nil },
		"no spec":        func(c *Config) { c.Spec = phalanx.JobSpec{} },
		"wrong size":     func(c *Config) { c.State[0].Shape = []int{6} },
		"unknown dtype":  func(c *Config) { c.State[0].DType = "f8" },
		"equal names":    func(c *Config) { c.State[1] = c.State[0] },
		"negative sizes": func(c *Config) { c.GradientElements = -1 },
	} {
		cfg := testConfig()
		change(&cfg)
		if _, err := Attach(cfg, Memory{}); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
