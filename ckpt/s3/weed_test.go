// SPDX-License-Identifier: Apache-2.0

//go:build seaweedfs

package s3_test

import (
	"testing"
	"time"

	"phalanx/ckpt"
	"phalanx/ckpt/s3/s3test"
	"phalanx/ckpt/storetest"
	"phalanx/ckpt/storewrap"
)

// patient is a budget for a store whose conditions take seconds.
var patient = storewrap.Budget{Total: time.Minute, Base: 100 * time.Millisecond, Cap: 2 * time.Second}

// TestWeedConformance: the suite over a second real server, in the ways to send checksums that differ on the wire.
func TestWeedConformance(t *testing.T) {
	w := s3test.StartWeed(t)
	for _, way := range []string{"auto", "trailing-unsigned", "trailing-signed", "sha256", "md5"} {
		t.Run(way, func(t *testing.T) {
			storetest.Test(t, func(t *testing.T) ckpt.Store {
				return storewrap.NewRetry(open(t, w.StoreURL(fresh(), "checksum="+way), w.Env()), patient)
			})
		})
	}
}

func TestWeedProbe(t *testing.T) {
	w := s3test.StartWeed(t)
	p, err := open(t, w.StoreURL("run"), w.Env()).Probe(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%+v", p)
	if missing := p.Missing(); len(missing) > 0 {
		t.Errorf("SeaweedFS is said to miss %+v", missing)
	}
}

// TestWeedRetention: forget, undelete and gc, which race for conditions on one object, over the second real server.
func TestWeedRetention(t *testing.T) {
	w := s3test.StartWeed(t)
	retains(t, storewrap.NewRetry(open(t, w.StoreURL("run"), w.Env()), patient))
}
