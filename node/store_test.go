// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"net"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"phalanx/ckpt"
)

// TestSilentStore: one that accepts and never answers is a timeout, exit code 6.
func TestSilentStore(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	t.Setenv("AWS_ACCESS_KEY_ID", "id")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "secret")
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	_, err = openStore(ctx, "s3://bucket/x?endpoint=http://"+silent.Addr().String(), nil)
	var p *Problem
	if !errors.As(err, &p) || p.Code != CodeTimeout {
		t.Fatalf("got %v, want code %d", err, CodeTimeout)
	}
}

// TestStoreIsMeasured: what a daemon asks of its store is on /metrics.
func TestStoreIsMeasured(t *testing.T) {
	m := newMeters("job", "h/0", func() *Status { return nil })
	s, err := openStore(t.Context(), t.TempDir(), m)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		_ = s.PutIfAbsent(t.Context(), "k", ckpt.Bytes([]byte("abc")))
	}
	w := httptest.NewRecorder()
	m.handler().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	for _, want := range []string{
		`phalanx_store_operation_duration_seconds_count{job="job",member="h/0",outcome="ok",verb="put-if-absent"} 1`,
		`phalanx_store_operation_duration_seconds_count{job="job",member="h/0",outcome="refused",verb="put-if-absent"} 1`,
		`phalanx_store_bytes_total{job="job",member="h/0",verb="put-if-absent"} 3`,
	} {
		if !strings.Contains(w.Body.String(), want) {
			t.Errorf("/metrics has no %s", want)
		}
	}
}

func TestOpenStore(t *testing.T) {
	t.Setenv("AWS_SHARED_CREDENTIALS_FILE", filepath.Join(t.TempDir(), "none"))
	for _, name := range []string{"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_WEB_IDENTITY_TOKEN_FILE"} {
		t.Setenv(name, "")
	}
	dir := t.TempDir()
	for _, url := range []string{filepath.Join(dir, "a"), "file://" + filepath.Join(dir, "b"), "mem://c"} {
		s, err := openStore(t.Context(), url, nil)
		if err != nil {
			t.Errorf("%s: %v", url, err)
			continue
		}
		if records, problems, err := ckpt.List(t.Context(), s, "job"); len(records)+len(problems) != 0 || err != nil {
			t.Errorf("%s: a new store has %v, %v, %v", url, records, problems, err)
		}
	}
	taken := filepath.Join(dir, "file")
	if err := os.WriteFile(taken, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for url, code := range map[string]int{
		"": CodeUsage, "file://": CodeUsage, "gs://bucket/x": CodeUsage, "s3://bucket/x?regoin=y": CodeUsage, "://x": CodeUsage,
		"s3://bucket/x": CodeAuth, filepath.Join(taken, "below"): CodeFailed,
	} {
		_, err := openStore(t.Context(), url, nil)
		var p *Problem
		if !errors.As(err, &p) || p.Code != code || p.Hint == "" {
			t.Errorf("%q: %v, want code %d and a hint", url, err, code)
		}
	}
}
