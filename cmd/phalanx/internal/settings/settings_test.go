// SPDX-License-Identifier: Apache-2.0

package settings

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"phalanx/node"
)

// given reads settings as `phalanx run` does.
func given(t *testing.T, args, environ []string, file string) (*Settings, error) {
	t.Helper()
	t.Chdir(t.TempDir())
	if file != "" {
		if err := os.WriteFile(FileName, []byte(file), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s := Default()
	f := pflag.NewFlagSet("", pflag.ContinueOnError)
	s.Flags(f)
	if err := f.Parse(args); err != nil {
		t.Fatal(err)
	}
	return s, Load(f, environ)
}

func TestPrecedence(t *testing.T) {
	file := "nproc = 2\nkeep = 5\ngrace = \"7s\"\njoin = [\"a:1\", \"b:2\"]\nplain = true\nsave_every = 20\n"
	s, err := given(t, []string{"--nproc", "4"}, []string{"PHALANX_NPROC=3", "PHALANX_KEEP=6", "PHALANX_HANG_TIMEOUT=1m"}, file)
	if err != nil {
		t.Fatal(err)
	}
	want := Default()
	want.Nproc, want.Keep, want.Grace, want.HangTimeout = 4, 6, Duration(7*time.Second), Duration(time.Minute)
	want.Join, want.Plain, want.SaveEvery = []string{"a:1", "b:2"}, true, Interval{Steps: 20}
	if !reflect.DeepEqual(s, want) {
		t.Errorf("got %+v\nwant %+v", s, want)
	}
}

func TestFileInTheJobsDirectoryWins(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, FileName), []byte("nproc = 8"), 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := given(t, []string{"--dir", dir}, nil, "nproc = 2\nkeep = 9\n")
	if err != nil || s.Nproc != 8 || s.Keep != 3 {
		t.Errorf("nproc %d, keep %d, error %v; want 8, 3, nil: files are not mixed", s.Nproc, s.Keep, err)
	}
}

func TestEveryFlagIsAKeyOfTheFile(t *testing.T) {
	values := map[string]string{"int": "1", "N|auto|gpu|cpu": "1", "K": "true", "uint64": "1", "bool": "true", "string": `"x"`, "stringSlice": `["a:1"]`, "D": `"3s"`, "STEPS|D": `"10"`, "MIN:MAX": `"1:2"`, "POLICY": `"halt-after=3"`, "BYTES": `"64MiB"`}
	f := pflag.NewFlagSet("", pflag.ContinueOnError)
	Default().Flags(f)
	f.VisitAll(func(p *pflag.Flag) {
		key := strings.ReplaceAll(p.Name, "-", "_")
		if _, err := given(t, nil, nil, key+" = "+values[p.Value.Type()]); err != nil {
			t.Errorf("%s of type %s: %v", key, p.Value.Type(), err)
		}
	})
}

func TestSaveFailure(t *testing.T) {
	for text, want := range map[string]SaveFailure{"continue": {}, "halt-after=3": {After: 3}, "halt-older=90m": {Older: 90 * time.Minute}} {
		var got SaveFailure
		if err := got.Set(text); err != nil || got != want {
			t.Errorf("%s: %+v, %v", text, got, err)
		}
		var again SaveFailure
		if err := again.Set(got.String()); err != nil || again != got {
			t.Errorf("%s prints as %s: %v", text, got.String(), err)
		}
	}
	for _, text := range []string{"", "halt", "halt-after", "halt-after=0", "halt-after=-1", "halt-after=x", "halt-older=", "halt-older=0s", "halt-older=5", "continue=1"} {
		if err := new(SaveFailure).Set(text); err == nil || !strings.Contains(err.Error(), "halt-after=N") {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func TestBytes(t *testing.T) {
	for text, want := range map[string]Bytes{"0": 0, "17": 17, "17B": 17, "1KiB": 1024, "64MiB": 64 << 20, "3GiB": 3 << 30, "2TiB": 2 << 40} {
		var got, again Bytes
		if err := got.Set(text); err != nil || got != want {
			t.Errorf("%s: %d, %v", text, got, err)
		}
		if err := again.Set(got.String()); err != nil || again != got {
			t.Errorf("%s prints as %s: %v", text, got.String(), err)
		}
	}
	for _, text := range []string{"", "x", "-1", "1.5GiB", "1GB", "1 GiB", "9999999999TiB", "GiB", "1iB"} {
		if err := new(Bytes).Set(text); err == nil || !strings.Contains(err.Error(), "64GiB") {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func TestUnknownKey(t *testing.T) {
	_, err := given(t, nil, nil, "spare = 1")
	var p *node.Problem
	if !errors.As(err, &p) || p.Code != node.CodeUsage || !strings.Contains(p.Hint, "did you mean spares?") {
		t.Errorf("got %v", err)
	}
	if _, err := given(t, nil, nil, "colour_of_the_sky = 1"); err == nil || !strings.Contains(err.Error(), "known are") {
		t.Errorf("got %v", err)
	}
}

func TestCompleteNames(t *testing.T) {
	t.Chdir(t.TempDir())
	wd, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ dir, job, wantDir, wantJob string }{
		{"", "", filepath.Join(".phalanx", filepath.Base(wd)), filepath.Base(wd)},
		{"", "j", ".phalanx/j", "j"},
		{"x/y", "", "x/y", "y"},
		{"x/y z", "", "x/y z", "y-z"},
		{"x", "j", "x", "j"},
	} {
		s := Default()
		s.Dir, s.Job, s.Host, s.Command = c.dir, c.job, "h", []string{"true"}
		if err := errors.Join(s.Complete(), s.Validate()); err != nil {
			t.Errorf("%+v: %v", c, err)
			continue
		}
		if s.Dir != filepath.Join(wd, c.wantDir) || s.Job != c.wantJob || s.Store != filepath.Join(s.Dir, "store") {
			t.Errorf("%+v: dir %s, job %s, store %s", c, s.Dir, s.Job, s.Store)
		}
	}
}

func TestPolicy(t *testing.T) {
	for _, c := range []struct{ min, max, nproc, asked, wantMin, want int }{
		{1, 1, 4, 0, 1, 4}, {2, 4, 8, 0, 9, 32}, {1, 1, 4, 3, 3, 4}, {3, 3, 1, 0, 3, 3},
	} {
		s := Default()
		s.MinHosts, s.MaxHosts, s.Nproc, s.Min, s.Host, s.Dir = c.min, c.max, c.nproc, c.asked, "h", t.TempDir()
		if err := s.Complete(); err != nil {
			t.Fatal(err)
		}
		if p := s.Policy(); p.Min != c.wantMin || p.Want != c.want {
			t.Errorf("%+v: policy %+v", c, p)
		}
	}
}

func TestWriteReadDiff(t *testing.T) {
	s := Default()
	s.Dir, s.Host, s.Command, s.SaveEvery, s.Join = t.TempDir(), "h", []string{"train", "a b"}, Interval{Steps: 5}, []string{"a:1"}
	if err := errors.Join(s.Complete(), s.Write()); err != nil {
		t.Fatal(err)
	}
	got, err := Read(s.Dir)
	if err != nil || !reflect.DeepEqual(got, s) {
		t.Fatalf("got %+v, %v\nwant %+v", got, err, s)
	}
	if d := s.Diff(got); d != "" {
		t.Errorf("no difference, and got %q", d)
	}
	got.Version, got.Address, got.Port = "other", "10.0.0.1", 5
	if d := s.Diff(got); d != "" {
		t.Errorf("nobody gave these, and got %q", d)
	}
	got.Command, got.Keep = []string{"train"}, 9
	if d := s.Diff(got); d != `keep is 3, running with 9; command is train "a b", running is train` {
		t.Errorf("got %q", d)
	}
}

// A run of this release attaches to what an older one started: a setting that it did not have is no difference.
func TestOlderSettings(t *testing.T) {
	s := Default()
	s.Dir, s.Host, s.Command = t.TempDir(), "h", []string{"train"}
	if err := errors.Join(s.Complete(), s.Write()); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(File(s.Dir))
	if err != nil {
		t.Fatal(err)
	}
	older := bytes.Replace(b, []byte(`"keep_logs"`), []byte(`"unknown"`), 1)
	if bytes.Equal(older, b) {
		t.Fatal("the setting is not written")
	}
	if err := os.WriteFile(File(s.Dir), older, 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := Read(s.Dir)
	if err != nil || s.Diff(got) != "" || got.KeepLogs != s.KeepLogs {
		t.Errorf("read %+v, %v; differs: %s", got, err, s.Diff(got))
	}
}

func TestFindAddress(t *testing.T) {
	for _, c := range []struct {
		name          string
		set           func(*Settings)
		key           bool
		address, fail string
		port          int
	}{
		{"one host", func(*Settings) {}, false, "127.0.0.1", "", 0},
		{"one host with a key", func(*Settings) {}, true, "127.0.0.1", "", 0},
		{"port", func(s *Settings) { s.Bind = "127.0.0.1:7777" }, false, "127.0.0.1", "", 7777},
		{"IPv6", func(s *Settings) { s.Bind = "[::1]:80" }, false, "::1", "", 80},
		{"open without a key", func(s *Settings) { s.Bind = "10.0.0.1" }, false, "", "needs a job key", 0},
		{"join without a key", func(s *Settings) { s.Join = []string{"localhost:1"} }, false, "", "needs a job key", 0},
		{"join", func(s *Settings) { s.Join = []string{"127.0.0.1:1"} }, true, "127.0.0.1", "", 0},
		{"join without a port", func(s *Settings) { s.Join = []string{"127.0.0.1"} }, true, "", "HOST:PORT", 0},
		{"all addresses", func(s *Settings) { s.Bind = "0.0.0.0" }, true, "", "--advertise", 0},
		{"all addresses, one advertised", func(s *Settings) { s.Bind, s.Advertise = "0.0.0.0:5", "10.0.0.1" }, true, "0.0.0.0", "", 5},
		{"bad advertise", func(s *Settings) { s.Advertise = "host" }, true, "", "--advertise host", 0},
		{"interface", func(s *Settings) { s.Interface = "lo" }, true, "127.0.0.1", "", 0},
		{"no interface", func(s *Settings) { s.Interface = "no-such-0" }, true, "", "--interface no-such-0", 0},
		{"both", func(s *Settings) { s.Interface, s.Bind = "lo", "::1" }, true, "", "give one of them", 0},
	} {
		s := Default()
		c.set(s)
		err := s.FindAddress(c.key)
		switch {
		case c.fail != "":
			if err == nil || !strings.Contains(err.Error(), c.fail) {
				t.Errorf("%s: got %v, want %q", c.name, err, c.fail)
			}
		case err != nil || s.Address != c.address || s.Port != c.port:
			t.Errorf("%s: got %s port %d, %v", c.name, s.Address, s.Port, err)
		}
	}
}

func TestLocalKey(t *testing.T) {
	s := Default()
	s.Dir = t.TempDir()
	a, err := s.LocalKey()
	if err != nil {
		t.Fatal(err)
	}
	b, err := s.LocalKey()
	if err != nil || a != b || a.IsZero() {
		t.Errorf("second read: %v, equal %v", err, a == b)
	}
	if err := os.Chmod(LocalKeyFile(s.Dir), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := s.LocalKey(); err == nil {
		t.Error("a key that others can read was taken")
	}
}
