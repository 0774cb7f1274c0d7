// SPDX-License-Identifier: Apache-2.0

package s3

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"phalanx/ckpt"
)

// FuzzURL: what is accepted prints as what is read alike, and no error shows a value.
func FuzzURL(f *testing.F) {
	for _, s := range []string{
		"s3://bucket", "s3://bucket/a/b/", "s3://b.c-d/x?endpoint=https://host:9000&region=eu&checksum=md5&path-style=0",
		"s3://bucket?concurrency=4&bytes-per-second=7&iam=1&profile=p", "s3://key:hunter2hunter2@bucket/x", "s3://bucket?secret=hunter2hunter2", "s3://bucket?checksum=best", "s3:", "",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		c, err := ParseURL(text)
		if err != nil {
			const secret = "hunter2hunter2"
			place, query, _ := strings.Cut(text, "?")
			value := strings.Count(text, secret) == 1 && (strings.Contains(query, "="+secret) || strings.Contains(place, ":"+secret+"@"))
			if value && strings.Contains(err.Error(), secret) {
				t.Fatalf("%v shows a secret", err)
			}
			return
		}
		again, err := ParseURL(c.String())
		if err != nil || again != c {
			t.Fatalf("%q is %+v, prints as %s, which is %+v, %v", text, c, c, again, err)
		}
		if c.Prefix != "" && ckpt.ValidKey(c.Prefix) != nil || c.Concurrency < 1 {
			t.Fatalf("%q is %+v", text, c)
		}
	})
}

// answering is a store whose server answers every request with the bytes that answer holds then.
func answering(f testing.TB, answer *atomic.Pointer[[]byte]) *Store {
	c, err := ParseURL("s3://bucket/p?endpoint=http://127.0.0.1:1")
	if err != nil {
		f.Fatal(err)
	}
	env := map[string]string{"AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "secret"}
	s, err := New(c, func(name string) string { return env[name] })
	if err != nil {
		f.Fatal(err)
	}
	s.wire.transport = replay{answer}
	s.tried.Store(&tried{checksum: ChecksumHeader, create: true, probe: &ckpt.Probe{}})
	return s
}

// replay answers without a connection, so that a fuzzer sees the same paths each time.
type replay struct{ answer *atomic.Pointer[[]byte] }

func (r replay) RoundTrip(q *http.Request) (*http.Response, error) {
	if q.Body != nil {
		if _, err := io.Copy(io.Discard, q.Body); err != nil {
			return nil, err
		}
	}
	return http.ReadResponse(bufio.NewReader(bytes.NewReader(*r.answer.Load())), q)
}

// FuzzAnswer: whatever a server answers, reading gives what was asked for or an error, and a write that was not acknowledged
// rightly is not said to have happened.
func FuzzAnswer(f *testing.F) {
	for _, s := range []string{
		"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nETag: \"x\"\r\nLast-Modified: Tue, 01 Dec 2026 09:00:00 GMT\r\n\r\nabc",
		"HTTP/1.1 206 Partial Content\r\nContent-Length: 3\r\nContent-Range: bytes 1-3/9\r\nETag: \"x\"\r\nLast-Modified: Tue, 01 Dec 2026 09:00:00 GMT\r\n\r\nabc",
		"HTTP/1.1 200 OK\r\nContent-Length: 9\r\nX-Amz-Checksum-Crc64nvme: AAAAAAAAAAA=\r\nETag: \"x\"\r\nLast-Modified: Tue, 01 Dec 2026 09:00:00 GMT\r\n\r\nabc",
		"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n<ListBucketResult><Contents><Key>p/a</Key><Size>1</Size></Contents><Contents><Key>p/b</Key></Contents></ListBucketResult>",
		"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n<ListBucketResult><IsTruncated>true</IsTruncated><NextContinuationToken>x</NextContinuationToken></ListBucketResult>",
		"HTTP/1.1 503 Slow Down\r\nConnection: close\r\n\r\n<Error><Code>SlowDown</Code></Error>",
		"HTTP/1.1 301 Moved\r\nLocation: http://other/\r\nContent-Length: 0\r\n\r\n",
		"HTTP/1.1 412 Precondition Failed\r\nContent-Length: 0\r\n\r\n",
		"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\nETag: \"x\"\r\nLast-Modified: Tue, 01 Dec 2026 09:00:00 GMT\r\n\r\nabc",
		"",
	} {
		f.Add([]byte(s))
	}
	var present atomic.Pointer[[]byte]
	s := answering(f, &present)
	f.Cleanup(s.Close)
	f.Fuzz(func(t *testing.T, answer []byte) {
		present.Store(&answer)
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Millisecond) // minio-go sleeps after a failure
		defer cancel()
		if p, err := s.Get(ctx, "k", 1, 3); err == nil && len(p) > 3 {
			t.Fatalf("asked for 3 bytes and got %d", len(p))
		}
		if info, err := s.Stat(ctx, "k"); err == nil && (info.Key != "k" || info.Size < 0) {
			t.Fatalf("stat: %+v", info)
		}
		if page, err := s.List(ctx, "", "", 2); err == nil {
			for i, info := range page {
				if ckpt.ValidKey(info.Key) != nil || i > 1 || i > 0 && page[i-1].Key >= info.Key {
					t.Fatalf("list: %+v", page)
				}
			}
		}
		err := s.PutIfAbsent(ctx, "k", ckpt.Bytes([]byte("abc")))
		if err == nil && !strings.Contains(string(answer), " 2") {
			t.Fatalf("%q is taken as a success", answer)
		}
		if errors.Is(err, ckpt.ErrExists) && errors.Is(err, ckpt.ErrConflict) {
			t.Fatalf("%v is final and unknown", err)
		}
	})
}
