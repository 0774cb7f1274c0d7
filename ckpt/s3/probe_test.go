// SPDX-License-Identifier: Apache-2.0

package s3_test

import (
	"context"
	"errors"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"phalanx/ckpt"
	"phalanx/ckpt/s3"
	"phalanx/ckpt/s3/s3test"
	"phalanx/ckpt/storewrap"
)

// probe tries a store out and says how long that took.
func probe(t *testing.T, url string, env map[string]string) (*ckpt.Probe, error) {
	t.Helper()
	s, err := s3.New(parse(t, url), s3test.Lookup(env))
	if err != nil {
		return nil, err
	}
	t.Cleanup(s.Close)
	begun := time.Now()
	p, err := s.Probe(t.Context())
	if took := time.Since(begun); took > 15*time.Second {
		t.Errorf("the probe of %s took %s", url, took)
	}
	return p, err
}

// TestWhatIsWrongAtTheStart: each has its own error, which says what to do.
func TestWhatIsWrongAtTheStart(t *testing.T) {
	server := s3test.NewServer(t, false)
	secure := s3test.NewServer(t, true)
	env := server.Env(t)
	with := func(name, value string) map[string]string {
		e := maps.Clone(env)
		e[name] = value
		return e
	}
	nobody, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed := "http://" + nobody.Addr().String()
	_ = nobody.Close()
	untrusted := maps.Clone(secure.Env(t))
	delete(untrusted, "AWS_CA_BUNDLE")
	for _, c := range []struct {
		name, url string
		env       map[string]string
		flaws     s3test.Flaws
		clock     time.Duration
		is        error
		text      string
	}{
		{"no such bucket", strings.Replace(server.StoreURL("run"), "s3://bucket", "s3://other", 1), env, s3test.Flaws{}, 0, s3.ErrNoBucket, "create bucket other"},
		{"wrong region", strings.Replace(server.StoreURL("run"), s3test.Region, "moon-1", 1), env, s3test.Flaws{}, 0, s3.ErrRegion, "region=" + s3test.Region},
		{"unknown key", server.StoreURL("run"), with("AWS_ACCESS_KEY_ID", "AKIDOTHER"), s3test.Flaws{}, 0, ckpt.ErrAuth, "InvalidAccessKeyId"},
		{"wrong secret", server.StoreURL("run"), with("AWS_SECRET_ACCESS_KEY", "wrong-secret-text"), s3test.Flaws{}, 0, ckpt.ErrAuth, "SignatureDoesNotMatch"},
		{"wrong token", server.StoreURL("run"), with("AWS_SESSION_TOKEN", "stale"), s3test.Flaws{}, 0, ckpt.ErrAuth, "InvalidToken"},
		{"half of the credentials", server.StoreURL("run"), with("AWS_SECRET_ACCESS_KEY", ""), s3test.Flaws{}, 0, ckpt.ErrAuth, "set both"},
		{"no credentials", server.StoreURL("run"), map[string]string{"HOME": t.TempDir()}, s3test.Flaws{}, 0, ckpt.ErrAuth, "set AWS_ACCESS_KEY_ID"},
		{"clock", server.StoreURL("run"), env, s3test.Flaws{}, time.Hour, ckpt.ErrAuth, "the store's is 1h0m0s away"},
		{"may not write", server.StoreURL("run"), env, s3test.Flaws{ReadOnly: true}, 0, ckpt.ErrReadOnly, "s3:PutObject"},
		{"certificate", secure.StoreURL("run"), untrusted, s3test.Flaws{}, 0, ckpt.ErrAuth, "AWS_CA_BUNDLE"},
		{"no TLS there", strings.Replace(server.StoreURL("run"), "http://", "https://", 1), env, s3test.Flaws{}, 0, ckpt.ErrAuth, "endpoint=http://"},
		{"nobody there", "s3://bucket/run?endpoint=" + closed, env, s3test.Flaws{}, 0, ckpt.ErrUnavailable, "refused"},
		{"no such host", "s3://bucket/run?endpoint=http://no-such-host.invalid", env, s3test.Flaws{}, 0, ckpt.ErrUnavailable, "no-such-host.invalid"},
		{"bundle", server.StoreURL("run"), with("AWS_CA_BUNDLE", "/no/such/file"), s3test.Flaws{}, 0, ckpt.ErrAuth, "AWS_CA_BUNDLE"},
	} {
		server.Flaws = c.flaws
		server.SetClock(c.clock)
		_, err := probe(t, c.url, c.env)
		if !errors.Is(err, c.is) || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%s: got %v, want %v and %q", c.name, err, c.is, c.text)
		}
		if err != nil && (strings.Contains(err.Error(), "wrong-secret-text") || strings.Contains(err.Error(), env["AWS_SECRET_ACCESS_KEY"])) {
			t.Errorf("%s: %v shows a secret", c.name, err)
		}
		server.Flaws = s3test.Flaws{}
		server.SetClock(0)
	}
	if n := server.Keys(); n != 0 {
		t.Errorf("%d objects are left behind", n)
	}
}

// TestSilentServer: a server that accepts and never answers is given up in time.
func TestSilentServer(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	s, err := s3.New(parse(t, "s3://bucket/run?endpoint=http://"+l.Addr().String()), s3test.Lookup(map[string]string{"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if _, err := s.Probe(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("got %v", err)
	}
}

// TestAbilities: what each flaw of a server costs, and that the store is used in the way that works.
func TestAbilities(t *testing.T) {
	for _, c := range []struct {
		name     string
		flaws    s3test.Flaws
		missing  string
		checksum string
	}{
		{"none", s3test.Flaws{}, "", "header"},
		{"conditions ignored", s3test.Flaws{IgnoreConditions: true}, "conditional create, conditional replace", "header"},
		{"conditions refused", s3test.Flaws{RefuseConditions: true}, "conditional create, conditional replace", "header"},
		{"checksums ignored", s3test.Flaws{IgnoreChecksums: true}, "checksum is kept", "sha256"},
		{"checksums refused", s3test.Flaws{RefuseChecksums: true}, "checksum is kept", "sha256"},
		{"ranges ignored", s3test.Flaws{IgnoreRanges: true}, "", "header"},
		{"nothing is deleted", s3test.Flaws{KeepAll: true}, "delete", "header"},
	} {
		t.Run(c.name, func(t *testing.T) {
			server := s3test.NewServer(t, false)
			server.Flaws = c.flaws
			s := open(t, server.StoreURL("run"), server.Env(t))
			p, err := s.Probe(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			var missing []string
			for _, a := range p.Missing() {
				if a.Lost == "" {
					t.Errorf("%s is missing and nothing is lost", a.Name)
				}
				missing = append(missing, a.Name)
			}
			if got := strings.Join(missing, ", "); got != c.missing {
				t.Errorf("missing: %s, want %s", got, c.missing)
			}
			way := ""
			for _, a := range p.Abilities {
				if a.Name == "checksum is verified" {
					way = a.Detail
				}
			}
			if way != "mode "+c.checksum {
				t.Errorf("checksums are sent in %s, want %s", way, c.checksum)
			}
			if got := s.Capabilities(); got != p.Capabilities || got.Untried {
				t.Errorf("%+v, the probe said %+v", got, p.Capabilities)
			}
			// Without conditions the store still does not replace what it sees.
			ctx := t.Context()
			if err := s.PutIfAbsent(ctx, "k", body("one")); err != nil {
				t.Fatal(err)
			}
			if err := s.PutIfAbsent(ctx, "k", body("two")); !errors.Is(err, ckpt.ErrExists) {
				t.Errorf("created twice: %v", err)
			}
			if got, _ := server.Content("run/k"); got != "one" {
				t.Errorf("it holds %q", got)
			}
			part, err := s.Get(ctx, "k", 1, 1)
			if err != nil || string(part) != "n" {
				t.Errorf("a range of it is %q, %v", part, err)
			}
		})
	}
}

// TestFramesThatAreStored: a server that keeps the frames of a body is found out.
func TestFramesThatAreStored(t *testing.T) {
	server := s3test.NewServer(t, false)
	server.Flaws = s3test.Flaws{StoreFraming: true}
	_, err := probe(t, server.StoreURL("run", "checksum=trailing-unsigned"), server.Env(t))
	if err == nil || !strings.Contains(err.Error(), "what is stored is not what was sent") {
		t.Fatalf("got %v", err)
	}
	if n := server.Keys(); n != 0 {
		t.Errorf("%d objects are left behind", n)
	}
}

// TestReadersWriteNothing: opening for reading only lists.
func TestReadersWriteNothing(t *testing.T) {
	server := s3test.NewServer(t, false)
	s, err := s3.New(parse(t, server.StoreURL("run")), s3test.Lookup(server.Env(t)))
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Reach(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := server.Count("PUT") + server.Count("DELETE"); n != 0 || server.Count("LIST") != 1 || !s.Capabilities().Untried {
		t.Fatalf("%d writes, %d lists, %+v", n, server.Count("LIST"), s.Capabilities())
	}
}

// TestFirstWriteTries: a store that was away at the start is tried out by the first write.
func TestFirstWriteTries(t *testing.T) {
	server := s3test.NewServer(t, false)
	s, err := s3.New(parse(t, server.StoreURL("run")), s3test.Lookup(server.Env(t)))
	if err != nil {
		t.Fatal(err)
	}
	server.Hook(func(s3test.Request) s3test.Fault { return s3test.Fault{Status: 503, Code: "SlowDown"} })
	if err := s.PutIfAbsent(t.Context(), "k", body("x")); !errors.Is(err, ckpt.ErrUnavailable) || errors.Is(err, ckpt.ErrConflict) {
		t.Fatalf("got %v", err)
	}
	before := server.Count("LIST")
	if err := s.PutIfAbsent(t.Context(), "k", body("x")); !errors.Is(err, ckpt.ErrUnavailable) || server.Count("LIST") != before {
		t.Fatalf("a trial that has just failed is done again: %v", err)
	}
	server.Hook(nil)
	if err := storewrap.NewRetry(s, quick).PutIfAbsent(t.Context(), "k", body("x")); err != nil {
		t.Fatal(err)
	}
	if !s.Capabilities().ConditionalCreate {
		t.Fatal("it was not tried out")
	}
}

// TestProxy: the store obeys HTTP_PROXY and NO_PROXY.
func TestProxy(t *testing.T) {
	server := s3test.NewServer(t, false)
	proxied := 0
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		proxied++
		server.Config.Handler.ServeHTTP(w, r)
	}))
	defer proxy.Close()
	env := server.Env(t)
	env["HTTP_PROXY"] = proxy.URL
	url := "s3://bucket/run?endpoint=http://store.invalid&region=" + s3test.Region
	if _, err := probe(t, url, env); err != nil || proxied == 0 {
		t.Fatalf("%v, %d requests by the proxy", err, proxied)
	}
	env["NO_PROXY"] = "store.invalid"
	if _, err := probe(t, url, env); !errors.Is(err, ckpt.ErrUnavailable) {
		t.Fatalf("past the proxy: %v", err)
	}
}

func TestURLs(t *testing.T) {
	for text, want := range map[string]string{
		"http://x":                              "want a URL s3://",
		"s3://B/x":                              "want 3 to 63",
		"s3://a..b/x":                           "want 3 to 63",
		"s3://bucket/a b":                       "prefix",
		"s3://bucket/../x":                      "prefix",
		"s3://key:hunter2@bucket/x":             "does not belong into a URL",
		"s3://bucket?regoin=x":                  "did you mean region?",
		"s3://bucket?checksum=best":             "want auto or one of",
		"s3://bucket?path-style=maybe":          "want 1 or 0",
		"s3://bucket?concurrency=0":             "want 1 to 256",
		"s3://bucket?endpoint=host:9000":        "want https://HOST",
		"s3://bucket?endpoint=https://u:p@host": "want https://HOST",
		"s3://bucket?region=a&region=b":         "given 2 times",
		"s3://bucket?secret-access-key=hunter2": "unknown parameter",
	} {
		_, err := s3.ParseURL(text)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: got %v, want %q", text, err, want)
		}
	}
}
