// SPDX-License-Identifier: Apache-2.0

//go:build s3

package main

import (
	"testing"

	"phalanx/ckpt/s3/s3test"
)

// TestGatewayVerbs is TestBuckets against a real server, over TLS and over http.
func TestGatewayVerbs(t *testing.T) {
	for name, secure := range map[string]bool{"http": false, "tls": true} {
		t.Run(name, func(t *testing.T) {
			g := s3test.StartGateway(t, secure)
			for name, value := range g.Env() {
				t.Setenv(name, value)
			}
			testVerbsIn(t, func(path string) string { return g.StoreURL("some/" + path) })
		})
	}
}
