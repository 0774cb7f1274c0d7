// SPDX-License-Identifier: Apache-2.0

package open_test

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"phalanx/ckpt"
	"phalanx/ckpt/open"
	"phalanx/ckpt/s3/s3test"
	"phalanx/ckpt/storetest"
	"phalanx/ckpt/storewrap"
)

func TestConformance(t *testing.T) {
	server := s3test.NewServer(t, true)
	getenv := s3test.Lookup(server.Env(t))
	for name, url := range map[string]func(t *testing.T) string{
		"directory": func(t *testing.T) string { return t.TempDir() },
		"file":      func(t *testing.T) string { return "file://" + t.TempDir() },
		"mem":       func(t *testing.T) string { return "mem://" + strings.ReplaceAll(t.Name(), "/", "-") },
		"s3": func(t *testing.T) string {
			return server.StoreURL(strings.ReplaceAll(t.Name(), "/", "-"), "concurrency=8", "bytes-per-second=10000000000")
		},
	} {
		t.Run(name, func(t *testing.T) {
			storetest.Promises(t, func(t *testing.T) ckpt.Store {
				s, err := open.Store(t.Context(), url(t), open.Write, open.Options{Getenv: getenv, Observer: &storewrap.Counters{}})
				if err != nil {
					t.Fatal(err)
				}
				return s
			})
		})
	}
}

func TestClean(t *testing.T) {
	wd, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]string{
		"x/../y":                   filepath.Join(wd, "y"),
		"file:///a//b/":            "/a/b",
		"mem://x":                  "mem://x",
		"s3://bucket/a/":           "s3://bucket/a",
		"s3://bucket?checksum=md5": "s3://bucket?checksum=md5",
		"":                         "", "file://x": "", "mem://": "", "mem://a/b": "", "gs://x": "", "s3://B": "",
	} {
		got, err := open.Clean(text)
		if got != want || (want == "") != errors.Is(err, open.ErrURL) {
			t.Errorf("%q is %q, %v, want %q", text, got, err, want)
		}
	}
}

// TestModes: reading makes and writes nothing, and who must come up does so without the store.
func TestModes(t *testing.T) {
	ctx := t.Context()
	dir := filepath.Join(t.TempDir(), "store")
	if _, err := open.Store(ctx, dir, open.Read, open.Options{}); !errors.Is(err, ckpt.ErrNotFound) {
		t.Errorf("reading what is not there: %v", err)
	}
	if _, err := os.Stat(dir); err == nil {
		t.Error("reading has made the directory")
	}
	server := s3test.NewServer(t, false)
	o := open.Options{Getenv: s3test.Lookup(server.Env(t)), Budget: &storewrap.Budget{Total: 10 * time.Second, Base: 50 * time.Millisecond, Cap: time.Second}}
	if _, err := open.Store(ctx, server.StoreURL("x"), open.Read, o); err != nil || server.Count("PUT") != 0 {
		t.Errorf("reading wrote %d objects, %v", server.Count("PUT"), err)
	}

	silent, err := net.Listen("tcp", "127.0.0.1:0") // accepts and never answers
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	begun := time.Now()
	quiet := "s3://bucket/x?endpoint=http://" + silent.Addr().String()
	if _, err := open.Store(ctx, quiet, open.WriteLater, o); err != nil || time.Since(begun) > 15*time.Second {
		t.Errorf("a silent store holds a start up for %s: %v", time.Since(begun), err)
	}

	server.Hook(func(s3test.Request) s3test.Fault { return s3test.Fault{Drop: true} })
	if _, err := open.Store(ctx, server.StoreURL("x"), open.Write, o); !errors.Is(err, ckpt.ErrUnavailable) {
		t.Errorf("a store that is away is opened for writing: %v", err)
	}
	s, err := open.Store(ctx, server.StoreURL("x"), open.WriteLater, o)
	if err != nil {
		t.Fatalf("a store that is away keeps the process from starting: %v", err)
	}
	if !s.Capabilities().Untried {
		t.Error("it says what it cannot know")
	}
	time.AfterFunc(200*time.Millisecond, func() { server.Hook(nil) })
	if err := s.PutIfAbsent(ctx, "k", ckpt.Bytes([]byte("x"))); err != nil || s.Capabilities().Untried {
		t.Errorf("the first write that finds it: %v, %+v", err, s.Capabilities())
	}
	wrong := open.Options{Getenv: s3test.Lookup(map[string]string{"AWS_ACCESS_KEY_ID": "other", "AWS_SECRET_ACCESS_KEY": "x"})}
	if _, err := open.Store(ctx, server.StoreURL("x"), open.WriteLater, wrong); !errors.Is(err, ckpt.ErrAuth) {
		t.Errorf("what does not heal: %v", err)
	}
}
