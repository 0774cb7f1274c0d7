// SPDX-License-Identifier: Apache-2.0

package settings

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"github.com/spf13/pflag"

	"phalanx/ckpt/open"
	"phalanx/node"
)

// FuzzFile: phalanx.toml is refused as a usage error or sets what flags of the same text would.
func FuzzFile(f *testing.F) {
	f.Add("nproc = 4\nspares = 1\nsave_every = \"30s\"\njoin = [\"a:1\", \"b:2\"]\nplain = true\n")
	f.Add("nnodes = \"2:4\"\nhang_timeout = \"1m\"\nresume = \"7\"\n")
	f.Add("nproc = 1.5\n")
	f.Add("[job]\nname = 1\n")
	f.Add("nprocs = 4\n")
	f.Fuzz(func(t *testing.T, text string) {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, FileName), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		s := Default()
		s.Dir = dir
		flags := pflag.NewFlagSet("run", pflag.ContinueOnError)
		s.Flags(flags)
		if err := Load(flags, []string{"PHALANX_DIR=" + dir}); err != nil {
			var p *node.Problem
			if !errors.As(err, &p) || p.Code != node.CodeUsage || p.Hint == "" {
				t.Fatalf("%q: %v is no usage error with a hint", text, err)
			}
			return
		}
		s.Command, s.Host = []string{"train"}, "h"
		if s.Complete() != nil || s.Validate() != nil {
			return
		}
		if s.Nproc < 1 || s.Min < 1 || s.Min > s.Policy().Want || s.Keep < 1 || s.LocalSize() < 1 {
			t.Fatalf("%q is taken as %+v", text, s)
		}
	})
}

// FuzzRun: DIR/run.json is refused or read; what was read is written and read back the same.
func FuzzRun(f *testing.F) {
	s := Default()
	s.Dir, s.Host, s.Command, s.Join = "/d", "h", []string{"train", "x"}, []string{"a:1"}
	b, err := json.Marshal(s)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add([]byte(`{"save_every":"0s","grace":"-1s"}`))
	f.Add([]byte(`{"save_every":"","command":null}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		dir := t.TempDir()
		if err := os.WriteFile(File(dir), b, 0o600); err != nil {
			t.Fatal(err)
		}
		s, err := Read(dir)
		if err != nil {
			return
		}
		if s.SaveEvery == (Interval{}) || s.SaveEvery.Steps > 0 && s.SaveEvery.Every > 0 {
			t.Fatalf("%s saves every %+v", b, s.SaveEvery)
		}
		s.Dir = dir
		if err := s.Write(); err != nil {
			t.Fatal(err)
		}
		again, err := Read(dir)
		if err != nil || s.Diff(again) != "" || !reflect.DeepEqual(s.SaveEvery, again.SaveEvery) {
			t.Fatalf("%s reads back with %s, %v", b, s.Diff(again), err)
		}
	})
}

// FuzzText: addresses, hosts, durations, intervals and stores are refused with a hint, or print as what is read alike.
func FuzzText(f *testing.F) {
	for _, s := range []string{"127.0.0.1", "[::1]:80", "10.0.0.1:65536", "2:4", "5", "30s", "-1s", "200", "file:///x/../y", "s3://b", "s3://bucket/a/b?endpoint=http://h:1&path-style=0&concurrency=3", "fe80::1%eth0", ""} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if ip, port, err := parseBind(text); err == nil && (!ip.IsValid() || port < 0 || port > 65535) {
			t.Fatalf("%q binds %s port %d", text, ip, port)
		}
		var h, h2 hosts
		if h.Set(text) == nil && (h.MinHosts < 1 || h.MaxHosts < h.MinHosts || h2.Set(h.String()) != nil || h2.String() != h.String()) {
			t.Fatalf("%q are hosts %s, then %s", text, h.String(), h2.String())
		}
		var d, d2 Duration
		if d.Set(text) == nil && (d2.Set(d.String()) != nil || d2 != d) {
			t.Fatalf("%q lasts %s, then %s", text, d.String(), d2.String())
		}
		var v, v2 Interval
		if v.Set(text) == nil && (v2.Set(v.String()) != nil || v2 != v || v == Interval{}) {
			t.Fatalf("%q is every %s, then %s", text, v.String(), v2.String())
		}
		if store, err := open.Clean(text); err == nil {
			if again, err := open.Clean(store); err != nil || again != store {
				t.Fatalf("%q is the store %q, then %q, %v", text, store, again, err)
			}
		} else if !errors.Is(err, open.ErrURL) {
			t.Fatalf("%q: %v", text, err)
		}
	})
}
