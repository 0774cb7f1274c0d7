// SPDX-License-Identifier: Apache-2.0

//go:build s3

package s3_test

import (
	"bytes"
	"fmt"
	"sync"
	"testing"
	"time"

	"phalanx/ckpt"
	"phalanx/ckpt/s3/s3test"
	"phalanx/ckpt/storetest"
	"phalanx/ckpt/storewrap"
)

// TestGatewayConformance: the suite over a real server.
func TestGatewayConformance(t *testing.T) {
	for _, way := range []struct {
		name   string
		secure bool
		more   string
	}{
		{"https", true, "checksum=auto"}, {"http", false, "checksum=auto"}, {"http-trailing", false, "checksum=trailing-unsigned"}, {"https-trailing", true, "checksum=trailing-signed"},
	} {
		t.Run(way.name, func(t *testing.T) {
			g := s3test.StartGateway(t, way.secure)
			storetest.Test(t, func(t *testing.T) ckpt.Store {
				return storewrap.NewRetry(open(t, g.StoreURL(fresh(), way.more), g.Env()), quick)
			})
		})
	}
}

func TestGatewayProbe(t *testing.T) {
	g := s3test.StartGateway(t, true)
	p, err := open(t, g.StoreURL("run"), g.Env()).Probe(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if missing := p.Missing(); len(missing) > 0 {
		t.Errorf("versitygw is said to miss %+v", missing)
	}
}

// TestGatewayRetention: forget, undelete and gc, which race for conditions on one object, over a real server.
func TestGatewayRetention(t *testing.T) {
	g := s3test.StartGateway(t, false)
	retains(t, storewrap.NewRetry(open(t, g.StoreURL("run"), g.Env()), quick))
}

// TestGatewayKilledMidUpload: the server dies several times while objects are written to it. Every write that is told to have
// happened has, whole, and the retries bring all of them through.
func TestGatewayKilledMidUpload(t *testing.T) {
	g := s3test.StartGateway(t, false)
	budget := quick
	budget.Total = time.Minute
	s := storewrap.NewRetry(storewrap.NewLimit(open(t, g.StoreURL("run"), g.Env()), storewrap.Limits{Concurrency: 4}), budget)
	const objects, size = 24, 8 << 20
	content := func(i int) []byte { return bytes.Repeat([]byte{byte(i), byte(i >> 8), 3, 5}, size/4) }
	var wg sync.WaitGroup
	errs := make([]error, objects)
	for i := range objects {
		wg.Go(func() { errs[i] = s.PutIfAbsent(t.Context(), fmt.Sprint("o/", i), ckpt.Bytes(content(i))) })
	}
	for range 3 {
		time.Sleep(60 * time.Millisecond) // any moment is as good as another
		g.Kill()
		if err := g.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	wg.Wait()
	for i, err := range errs {
		if err != nil {
			t.Errorf("object %d: %v", i, err)
		}
		p, err := s.Get(t.Context(), fmt.Sprint("o/", i), 0, -1)
		if err != nil || !bytes.Equal(p, content(i)) {
			t.Errorf("object %d reads back as %d bytes, %v", i, len(p), err)
		}
	}
	page, err := ckpt.ListAll(t.Context(), s, "o/")
	if err != nil || len(page) != objects {
		t.Errorf("%d objects, want %d, %v", len(page), objects, err)
	}
}
