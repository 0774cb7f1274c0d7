// SPDX-License-Identifier: Apache-2.0

//go:build s3

package s3_test

import (
	"testing"

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
