// SPDX-License-Identifier: Apache-2.0

package s3_test

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"phalanx/ckpt"
	"phalanx/ckpt/s3"
	"phalanx/ckpt/s3/s3test"
	"phalanx/ckpt/storetest"
	"phalanx/ckpt/storewrap"
)

// quick tries for seconds, without waiting long.
var quick = storewrap.Budget{Total: 10 * time.Second, Base: time.Millisecond, Cap: 20 * time.Millisecond}

func parse(t testing.TB, url string) s3.Config {
	t.Helper()
	c, err := s3.ParseURL(url)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// open makes a store that was tried out.
func open(t testing.TB, url string, env map[string]string) *s3.Store {
	t.Helper()
	s, err := s3.New(parse(t, url), s3test.Lookup(env))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	if _, err := s.Probe(t.Context()); err != nil {
		t.Fatal(err)
	}
	return s
}

var prefixes atomic.Int64

// fresh is a prefix that no other store has.
func fresh() string { return fmt.Sprintf("run/%d", prefixes.Add(1)) }

func TestConformance(t *testing.T) {
	for _, way := range []struct {
		name     string
		secure   bool
		checksum string
	}{
		{"http", false, "auto"}, {"https", true, "auto"}, {"crc32c", false, "header-crc32c"}, {"trailing-unsigned", false, "trailing-unsigned"},
		{"trailing-signed", false, "trailing-signed"}, {"trailing-secure", true, "trailing-signed"}, {"md5", false, "md5"}, {"sha256", false, "sha256"}, {"none", true, "none"},
	} {
		t.Run(way.name, func(t *testing.T) {
			server := s3test.NewServer(t, way.secure)
			env := server.Env(t)
			suite := storetest.Promises
			if way.checksum == "auto" && !way.secure {
				suite = storetest.Test
			}
			suite(t, func(t *testing.T) ckpt.Store { return open(t, server.StoreURL(fresh(), "checksum="+way.checksum), env) })
		})
	}
}
