// SPDX-License-Identifier: Apache-2.0

package s3

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"github.com/minio/minio-go/v7"

	"phalanx/ckpt"
)

// MaxObjectBytes is the largest object that one PUT takes.
const MaxObjectBytes = 5 << 30

// Store keeps objects in a bucket.
type Store struct {
	cfg    Config
	region string
	wire   *wire
	creds  source
	plain  *minio.Core // sends bodies as they are
	framed *minio.Core // sends bodies in pieces, with a checksum after them

	probing chan struct{} // 1: whoever has put something in tries the store out, and owns failure
	failure error         // of the newest trial
	failed  time.Time     // when that ended
	tried   atomic.Pointer[tried]
}

// tried is what writing depends on, found by Probe.
type tried struct {
	checksum        Checksum
	create, replace bool // the conditions hold
	keeps           bool // HEAD gives the CRC64NVME back
	probe           *ckpt.Probe
}

var (
	_ ckpt.Store      = (*Store)(nil)
	_ ckpt.IntoGetter = (*Store)(nil)
	_ ckpt.Prober     = (*Store)(nil)
)

// New makes a store of what a URL says. It reads credentials, but asks the store nothing: Probe does.
func New(c Config, env Env) (*Store, error) {
	c.Endpoint = cmp.Or(c.Endpoint, env("AWS_ENDPOINT_URL_S3"), env("AWS_ENDPOINT_URL"))
	c.Concurrency = cmp.Or(c.Concurrency, defaultConcurrency)
	c.Checksum = cmp.Or(c.Checksum, ChecksumAuto)
	if c.Endpoint != "" {
		if err := setEndpoint(&c, c.Endpoint); err != nil {
			return nil, fmt.Errorf("s3: endpoint: %w", err)
		}
	}
	w, err := newWire(c, env)
	if err != nil {
		return nil, err
	}
	s := &Store{cfg: c, region: regionOf(c, env), wire: w, probing: make(chan struct{}, 1)}
	if s.creds, err = findCredentials(c, env, &http.Client{Transport: w.transport, Timeout: headerTimeout}); err != nil {
		return nil, err
	}
	u, err := url.Parse(cmp.Or(c.Endpoint, "https://s3."+s.region+".amazonaws.com"))
	if err != nil {
		return nil, fmt.Errorf("s3: endpoint of region %q: not a host name", s.region)
	}
	o := minio.Options{
		Creds: s.creds.Credentials, Secure: u.Scheme == "https", Transport: w, Region: s.region,
		BucketLookup: map[Choice]minio.BucketLookupType{Auto: minio.BucketLookupAuto, Yes: minio.BucketLookupPath, No: minio.BucketLookupDNS}[c.PathStyle],
		MaxRetries:   1, // storewrap.Retry has a budget of minutes and knows what may be tried again
	}
	framed := o
	framed.TrailingHeaders = true
	if s.plain, err = minio.NewCore(u.Host, &o); err == nil {
		s.framed, err = minio.NewCore(u.Host, &framed)
	}
	if err != nil {
		return nil, fmt.Errorf("s3: endpoint %s: %w", u.Host, err)
	}
	return s, nil
}

// place is where the store is, for messages.
func (s *Store) place() string {
	text := "s3://" + s.cfg.Bucket
	if s.cfg.Prefix != "" {
		text += "/" + s.cfg.Prefix
	}
	if s.cfg.Endpoint != "" {
		text += " at " + s.cfg.Endpoint
	}
	return text
}

// Config is what the store was made of.
func (s *Store) Config() Config { return s.cfg }

// Close ends idle connections.
func (s *Store) Close() {
	if t, ok := s.wire.transport.(*http.Transport); ok {
		t.CloseIdleConnections()
	}
}

// Capabilities implements ckpt.Store. Before Probe nothing is known to be kept.
func (s *Store) Capabilities() ckpt.Capabilities {
	c := ckpt.Capabilities{Name: s.cfg.String(), Untried: true, Durable: true, MaxObjectBytes: MaxObjectBytes}
	if t := s.tried.Load(); t != nil {
		c.Untried = false
		c.ConditionalCreate, c.ConditionalReplace, c.KeepsChecksum = t.create, t.replace, t.keeps
	}
	return c
}

// full is the key in the bucket.
func (s *Store) full(key string) string {
	if s.cfg.Prefix == "" {
		return key
	}
	return s.cfg.Prefix + "/" + key
}

// check refuses what is not to be sent.
func check(ctx context.Context, verb, key string) error {
	err := ckpt.ValidKey(key)
	if err == nil {
		err = ctx.Err()
	}
	if err != nil {
		return fmt.Errorf("s3: %s %s: %w", verb, key, err)
	}
	return nil
}

// try runs a request with a deadline, and once more with other credentials when these have ended.
func (s *Store) try(ctx context.Context, verb, key string, write bool, bytes int64, request func(context.Context) error) error {
	for again := false; ; again = true {
		one, cancel := context.WithTimeout(ctx, tryTimeout(bytes))
		err := request(one)
		cancel()
		if err == nil {
			return nil
		}
		if classify(ctx, err) == causeExpired && s.creds.renews && !again {
			s.creds.Expire()
			continue
		}
		return s.fail(ctx, verb, key, write, err)
	}
}

// Get implements ckpt.Store.
func (s *Store) Get(ctx context.Context, key string, off, n int64) ([]byte, error) {
	if err := check(ctx, "get", key); err != nil {
		return nil, err
	}
	if off < 0 {
		return nil, fmt.Errorf("s3: get %s from %d: %w", key, off, ckpt.ErrNotFound)
	}
	if n == 0 {
		return s.atEnd(ctx, key, off, true)
	}
	var p []byte
	err := s.try(ctx, "get", key, false, n, func(ctx context.Context) (err error) {
		p, err = s.fetch(ctx, key, off, n)
		return err
	})
	var f *failure
	if errors.As(err, &f) && f.cause == causeRange {
		return s.atEnd(ctx, key, off, false)
	}
	if err != nil {
		return nil, err
	}
	return p, nil
}

// atEnd answers a read of nothing: from the end of an object, or within it.
func (s *Store) atEnd(ctx context.Context, key string, off int64, within bool) ([]byte, error) {
	info, err := s.Stat(ctx, key)
	if err != nil {
		return nil, err
	}
	if off == info.Size || within && off < info.Size {
		return []byte{}, nil
	}
	return nil, fmt.Errorf("s3: get %s from %d of %d bytes: %w", key, off, info.Size, ckpt.ErrNotFound)
}

// GetInto implements ckpt.IntoGetter.
func (s *Store) GetInto(ctx context.Context, key string, off int64, p []byte) (n int, sum ckpt.CRC, err error) {
	if len(p) == 0 || off < 0 {
		_, err := s.Get(ctx, key, off, 0)
		return 0, ckpt.Checksum(nil), err
	}
	if err := check(ctx, "get", key); err != nil {
		return 0, 0, err
	}
	err = s.try(ctx, "get", key, false, int64(len(p)), func(ctx context.Context) (err error) {
		body, length, err := s.openRange(ctx, key, off, int64(len(p)))
		if err != nil {
			return err
		}
		defer body.Close()
		n, sum, err = ckpt.FillFrom(ctx, p[:length], func(p []byte) (int, error) { return io.ReadFull(body, p) })
		if err == nil && int64(n) < length {
			err = short(length)
		}
		return err
	})
	var f *failure
	if errors.As(err, &f) && f.cause == causeRange {
		_, err = s.atEnd(ctx, key, off, false)
		return 0, ckpt.Checksum(nil), err
	}
	return n, sum, err
}

// trusted is how many bytes are made room for because a server announces them, where the caller names no number.
const trusted = 256 << 20

func short(length int64) error {
	return fmt.Errorf("the answer of %d bytes ended early: %w", length, io.ErrUnexpectedEOF)
}

// fetch is one GET. off is at least 0, n is not 0.
func (s *Store) fetch(ctx context.Context, key string, off, n int64) ([]byte, error) {
	body, length, err := s.openRange(ctx, key, off, n)
	if err != nil {
		return nil, err
	}
	defer body.Close()
	if length > trusted && n < 0 {
		// Memory follows what comes and not what is announced.
		p, err := io.ReadAll(io.LimitReader(body, length))
		if err == nil && int64(len(p)) < length {
			err = short(length)
		}
		return p, err
	}
	p := make([]byte, length)
	if m, err := io.ReadFull(body, p); errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return nil, short(length)
	} else if err != nil {
		return nil, fmt.Errorf("after %d of %d bytes: %w", m, length, err)
	}
	return p, nil
}

// openRange begins one GET: length is how many bytes the body must have, at most n if that is not negative. off is at least 0,
// n is not 0.
func (s *Store) openRange(ctx context.Context, key string, off, n int64) (body io.ReadCloser, length int64, err error) {
	var o minio.GetObjectOptions
	ranged := off > 0 || n > 0
	if ranged {
		end := int64(0) // to the end
		if n > 0 {
			end = off + n - 1
		}
		if off == 0 && end == 0 { // minio-go reads 0-0 as everything
			o.Set("Range", "bytes=0-0")
		} else if err := o.SetRange(off, end); err != nil {
			return nil, 0, err
		}
	}
	body, info, header, err := s.plain.GetObject(ctx, s.cfg.Bucket, s.full(key), o)
	if err != nil {
		return nil, 0, err
	}
	switch length = info.Size; {
	case length < 0:
		err = errors.New("the answer does not say how long it is")
	case ranged && header.Get("Content-Range") == "": // a server that does not know ranges sends everything
		if off > length {
			err = minio.ErrorResponse{Code: "InvalidRange", StatusCode: http.StatusRequestedRangeNotSatisfiable, Message: "the range begins beyond the end"}
			break
		}
		if _, err = io.CopyN(io.Discard, body, off); err != nil {
			break
		}
		if length -= off; n > 0 {
			length = min(length, n)
		}
	case n > 0 && length > n:
		err = fmt.Errorf("asked for %d bytes, offered %d", n, length)
	}
	if err != nil {
		_ = body.Close() // nothing was written
		return nil, 0, err
	}
	return body, length, nil
}

// Stat implements ckpt.Store.
func (s *Store) Stat(ctx context.Context, key string) (ckpt.Info, error) {
	if err := check(ctx, "stat", key); err != nil {
		return ckpt.Info{}, err
	}
	var o minio.ObjectInfo
	err := s.try(ctx, "stat", key, false, 0, func(ctx context.Context) (err error) {
		o, err = s.plain.StatObject(ctx, s.cfg.Bucket, s.full(key), minio.StatObjectOptions{Checksum: true})
		return err
	})
	if err != nil {
		return ckpt.Info{}, err
	}
	if o.Size < 0 {
		return ckpt.Info{}, fmt.Errorf("s3: stat %s: the store does not say how large it is", key)
	}
	info := ckpt.Info{Key: key, Size: o.Size, ETag: o.ETag}
	if o.ChecksumMode != "COMPOSITE" { // which is a checksum of checksums
		info.CRC64NVME, info.HasCRC = parseChecksum(o.ChecksumCRC64NVME)
	}
	return info, nil
}

// parseChecksum reads a CRC64NVME as S3 writes it.
func parseChecksum(text string) (ckpt.CRC, bool) {
	sum, err := base64.StdEncoding.DecodeString(text)
	if err != nil || len(sum) != 8 {
		return 0, false
	}
	return ckpt.CRC(binary.BigEndian.Uint64(sum)), true
}

// pageLimit is what S3 gives at most.
const pageLimit = 1000

// List implements ckpt.Store. Keys that are not ours to use are left out.
func (s *Store) List(ctx context.Context, prefix, after string, limit int) ([]ckpt.Info, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("s3: list %s: %w", prefix, err)
	}
	if limit <= 0 || limit > pageLimit {
		limit = pageLimit
	}
	base := s.full("")
	o := minio.ListObjectsOptions{Prefix: base + prefix, Recursive: true, MaxKeys: limit, FetchOwner: new(bool)}
	if after != "" {
		o.StartAfter = base + after
	}
	var page []ckpt.Info
	err := s.try(ctx, "list", prefix, false, 0, func(ctx context.Context) error {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		page = nil
		for object := range s.plain.ListObjectsIter(ctx, s.cfg.Bucket, o) {
			if object.Err != nil {
				return object.Err
			}
			key, ok := strings.CutPrefix(object.Key, base)
			if !ok || ckpt.ValidKey(key) != nil || key <= after {
				continue
			}
			if len(page) > 0 && key <= page[len(page)-1].Key {
				return fmt.Errorf("the store lists %s after %s: keys must come in order", key, page[len(page)-1].Key)
			}
			page = append(page, ckpt.Info{Key: key, Size: object.Size, ETag: strings.Trim(object.ETag, `"`)})
			if len(page) == limit {
				break
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return page, nil
}

// Delete implements ckpt.Store.
func (s *Store) Delete(ctx context.Context, key string) error {
	if err := check(ctx, "delete", key); err != nil {
		return err
	}
	err := s.try(ctx, "delete", key, false, 0, func(ctx context.Context) error {
		return s.plain.RemoveObject(ctx, s.cfg.Bucket, s.full(key), minio.RemoveObjectOptions{})
	})
	if errors.Is(err, ckpt.ErrNotFound) {
		return nil
	}
	var f *failure
	if errors.As(err, &f) && f.cause == causeDenied {
		f.kinds = append(f.kinds, ckpt.ErrReadOnly)
	}
	return err
}
