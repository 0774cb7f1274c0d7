// SPDX-License-Identifier: Apache-2.0

package s3_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"phalanx/ckpt"
	"phalanx/ckpt/s3"
	"phalanx/ckpt/s3/s3test"
	"phalanx/ckpt/storewrap"
)

// served is a server with a store that was tried out.
func served(t *testing.T) (*s3test.Server, *s3.Store) {
	server := s3test.NewServer(t, false)
	return server, open(t, server.StoreURL("run"), server.Env(t))
}

// first lets a fault happen to the first n requests of a kind.
func first(n int, op string, f s3test.Fault) func(s3test.Request) s3test.Fault {
	return func(r s3test.Request) s3test.Fault {
		if r.Op == op && n > 0 {
			n--
			return f
		}
		return s3test.Fault{}
	}
}

func body(text string) ckpt.Body { return ckpt.Bytes([]byte(text)) }

// TestOneTry: what each fault of one request is called.
func TestOneTry(t *testing.T) {
	server, s := served(t)
	ctx := t.Context()
	if err := s.Put(ctx, "there", body("content")); err != nil {
		t.Fatal(err)
	}
	put := func() error { return s.PutIfAbsent(ctx, "new", body("new")) }
	get := func() error { _, err := s.Get(ctx, "there", 0, -1); return err }
	for _, c := range []struct {
		name string
		op   string
		f    s3test.Fault
		do   func() error
		is   error
		not  error
		text string
	}{
		{"slow down", "PUT", s3test.Fault{Status: 503, Code: "SlowDown"}, put, ckpt.ErrUnavailable, ckpt.ErrConflict, "SlowDown"},
		{"too many requests", "GET", s3test.Fault{Status: 429}, get, ckpt.ErrUnavailable, nil, "429"},
		{"internal error of a write", "PUT", s3test.Fault{Status: 500, Code: "InternalError"}, put, ckpt.ErrConflict, nil, "InternalError"},
		{"internal error of a read", "GET", s3test.Fault{Status: 500, Code: "InternalError"}, get, ckpt.ErrUnavailable, ckpt.ErrConflict, ""},
		{"bad gateway", "PUT", s3test.Fault{Status: 502}, put, ckpt.ErrConflict, nil, ""},
		{"no answer to a write", "PUT", s3test.Fault{Drop: true}, put, ckpt.ErrConflict, nil, "no answer"},
		{"no answer to a read", "GET", s3test.Fault{Drop: true}, get, ckpt.ErrUnavailable, ckpt.ErrConflict, "no answer"},
		{"conflict of conditions", "PUT", s3test.Fault{Status: 409, Code: "ConditionalRequestConflict"}, put, ckpt.ErrUnavailable, ckpt.ErrExists, ""},
		{"condition failed", "PUT", s3test.Fault{Status: 412, Code: "PreconditionFailed"}, put, ckpt.ErrExists, ckpt.ErrUnavailable, ""},
		{"answer cut short", "GET", s3test.Fault{Cut: 3}, get, ckpt.ErrUnavailable, nil, "no answer"},
		{"body changed on its way", "PUT", s3test.Fault{Damage: true}, put, ckpt.ErrUnavailable, ckpt.ErrCorrupt, "changed on its way"},
		{"denied", "PUT", s3test.Fault{Status: 403, Code: "AccessDenied"}, put, ckpt.ErrReadOnly, nil, "s3:PutObject"},
		{"other region", "PUT", s3test.Fault{Status: 301, Code: "PermanentRedirect", Region: "eu-9"}, put, s3.ErrRegion, nil, "region=eu-9"},
		{"no bucket", "PUT", s3test.Fault{Status: 404, Code: "NoSuchBucket"}, put, s3.ErrNoBucket, ckpt.ErrNotFound, "create bucket"},
	} {
		n := 1
		if c.op == "GET" && c.f.Drop { // net/http asks once more on another connection
			n = 2
		}
		server.Hook(first(n, c.op, c.f))
		err := c.do()
		server.Hook(nil)
		if !errors.Is(err, c.is) || c.not != nil && errors.Is(err, c.not) || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%s: got %v, want %v and %q, not %v", c.name, err, c.is, c.text, c.not)
		}
		if err := s.Delete(ctx, "new"); err != nil {
			t.Fatal(err)
		}
	}
}

// TestFaultsHeal: with a budget of tries the same operations succeed, and what is stored is what was written.
func TestFaultsHeal(t *testing.T) {
	server, inner := served(t)
	s := storewrap.NewRetry(inner, quick)
	ctx := t.Context()
	big := strings.Repeat("0123456789abcdef", 1<<16)
	for i, c := range []struct {
		name string
		op   string
		n    int
		f    s3test.Fault
	}{
		{"storm of 503", "PUT", 5, s3test.Fault{Status: 503, Code: "SlowDown"}},
		{"503 without a code", "PUT", 3, s3test.Fault{Status: 503}},
		{"409", "PUT", 3, s3test.Fault{Status: 409, Code: "ConditionalRequestConflict"}},
		{"acknowledgement lost", "PUT", 1, s3test.Fault{Drop: true, After: true}},
		{"acknowledgement lost in a proxy", "PUT", 1, s3test.Fault{Status: 504, After: true}},
		{"connection lost before", "PUT", 2, s3test.Fault{Drop: true}},
		{"bit flipped on the way there", "PUT", 2, s3test.Fault{Damage: true}},
		{"reads fail", "GET", 3, s3test.Fault{Status: 500}},
		{"answers cut short", "GET", 2, s3test.Fault{Cut: 100}},
	} {
		key := fmt.Sprintf("k%d", i)
		server.Hook(first(c.n, c.op, c.f))
		if err := s.PutIfAbsent(ctx, key, body(big)); err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
		p, err := s.Get(ctx, key, 0, -1)
		server.Hook(nil)
		if err != nil || string(p) != big {
			t.Errorf("%s: read %d bytes, %v", c.name, len(p), err)
		}
		if err := s.PutIfAbsent(ctx, key, body("other")); !errors.Is(err, ckpt.ErrExists) {
			t.Errorf("%s: created twice: %v", c.name, err)
		}
	}
}

// TestLostToAnother: of two writers of which one is told nothing, each learns who was first.
func TestLostToAnother(t *testing.T) {
	server, inner := served(t)
	s := storewrap.NewRetry(inner, quick)
	other := open(t, server.StoreURL("run"), server.Env(t))
	var once sync.Once
	server.Hook(func(r s3test.Request) s3test.Fault {
		f := s3test.Fault{}
		if r.Op == "PUT" && r.Key == "run/commit" {
			once.Do(func() { f.Drop = true })
		}
		return f
	})
	go func() { _ = other.PutIfAbsent(context.Background(), "commit", body("theirs")) }() // either of the two is dropped
	err := s.PutIfAbsent(t.Context(), "commit", body("ours"))
	p, readErr := s.Get(t.Context(), "commit", 0, -1)
	if readErr != nil || (err == nil) != (string(p) == "ours") || err != nil && !errors.Is(err, ckpt.ErrExists) {
		t.Fatalf("told %v, and the store holds %q (%v)", err, p, readErr)
	}
}

// TestStaleList: a list that does not show the newest object is what the probe reports.
func TestStaleList(t *testing.T) {
	server := s3test.NewServer(t, false)
	server.Hook(func(r s3test.Request) s3test.Fault { return s3test.Fault{Stale: r.Op == "LIST"} })
	p, err := open(t, server.StoreURL("run"), server.Env(t)).Probe(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if missing := p.Missing(); len(missing) != 1 || missing[0].Name != "list after write" {
		t.Fatalf("missing: %+v", missing)
	}
}

// TestFlippedRead: Get returns what comes; readers verify by the manifest. A flip is not hidden by another try.
func TestFlippedRead(t *testing.T) {
	server, s := served(t)
	if err := s.Put(t.Context(), "k", body("content")); err != nil {
		t.Fatal(err)
	}
	server.Hook(first(1, "GET", s3test.Fault{Flip: true}))
	p, err := s.Get(t.Context(), "k", 0, -1)
	if err != nil || ckpt.Checksum(p) == ckpt.Checksum([]byte("content")) {
		t.Fatalf("%q, %v", p, err)
	}
}

func TestDeadline(t *testing.T) {
	server, s := served(t)
	server.Hook(first(1, "PUT", s3test.Fault{Delay: time.Second}))
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	err := s.PutIfAbsent(ctx, "k", body("x"))
	if !errors.Is(err, ckpt.ErrConflict) || !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("a write that was given up is %v, want unknown and overdue", err)
	}
}

// TestExpiry: temporary credentials are renewed ahead of their end, and when the store says that they have ended.
func TestExpiry(t *testing.T) {
	server := s3test.NewServer(t, false)
	dir := t.TempDir()
	token := filepath.Join(dir, "token")
	if err := os.WriteFile(token, []byte("good\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	env := map[string]string{"AWS_WEB_IDENTITY_TOKEN_FILE": token, "AWS_ROLE_ARN": "arn:aws:iam::1:role/r", "AWS_ENDPOINT_URL_STS": server.URL}
	server.Issue(4 * time.Second)
	s := open(t, server.StoreURL("run"), env)
	if n := server.Count("STS"); n != 1 {
		t.Fatalf("asked %d times for credentials, want once", n)
	}
	time.Sleep(3300 * time.Millisecond) // beyond four fifths of their life
	if err := s.Put(t.Context(), "ahead", body("x")); err != nil || server.Count("STS") != 2 {
		t.Fatalf("%v, asked %d times", err, server.Count("STS"))
	}
	server.Hook(first(1, "PUT", s3test.Fault{Status: 400, Code: "ExpiredToken"}))
	server.Issue(time.Hour)
	if err := s.Put(t.Context(), "expired", body("x")); err != nil || server.Count("STS") != 3 {
		t.Fatalf("%v, asked %d times", err, server.Count("STS"))
	}
}

// TestFileIsReadAgain: keys that were replaced in the credentials file are used without a restart, in the middle of an upload too.
func TestFileIsReadAgain(t *testing.T) {
	server := s3test.NewServer(t, false)
	path := filepath.Join(t.TempDir(), "credentials")
	write := func(id, secret, token string) {
		text := fmt.Sprintf("[default]\naws_access_key_id = x\naws_secret_access_key = y\n[job]\naws_access_key_id = %s\naws_secret_access_key = %s\naws_session_token = %s\n", id, secret, token)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("ASIA1", server.AddKey("ASIA1", "t1"), "t1")
	env := map[string]string{"AWS_SHARED_CREDENTIALS_FILE": path}
	inner := open(t, server.StoreURL("run", "profile=job"), env)
	s := storewrap.NewRetry(inner, quick)
	server.Expire("ASIA1")
	if err := inner.Put(t.Context(), "k", body("x")); !errors.Is(err, ckpt.ErrAuth) || !strings.Contains(err.Error(), path) {
		t.Fatalf("expired: %v", err)
	}
	time.AfterFunc(100*time.Millisecond, func() { write("ASIA2", server.AddKey("ASIA2", "t2"), "t2") })
	if err := s.Put(t.Context(), "k", body("x")); err != nil {
		t.Fatalf("the new keys are not used: %v", err)
	}
}

// TestKeysOfTheEnvironmentEnd: what cannot be renewed is said at once.
func TestKeysOfTheEnvironmentEnd(t *testing.T) {
	server := s3test.NewServer(t, false)
	env := map[string]string{"AWS_ACCESS_KEY_ID": "ASIA1", "AWS_SECRET_ACCESS_KEY": server.AddKey("ASIA1", "t"), "AWS_SESSION_TOKEN": "t"}
	s := storewrap.NewRetry(open(t, server.StoreURL("run"), env), quick)
	server.Expire("ASIA1")
	before := server.Count("PUT")
	err := s.Put(t.Context(), "k", body("x"))
	if !errors.Is(err, ckpt.ErrAuth) || !strings.Contains(err.Error(), "AWS_SESSION_TOKEN") || server.Count("PUT") != before {
		t.Fatalf("%v after %d more requests", err, server.Count("PUT")-before)
	}
}
