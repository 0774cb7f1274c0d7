// SPDX-License-Identifier: Apache-2.0

package s3

import (
	"bytes"
	"context"
	"crypto/md5" //nolint:gosec // Content-MD5 is what some stores verify; it protects against accidents only
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"hash/crc32"
	"io"

	"github.com/minio/crc64nvme"
	"github.com/minio/minio-go/v7"

	"phalanx/ckpt"
)

// condition is what must hold of the object that a PUT would replace.
type condition struct {
	absent bool
	etag   string // "" is any
}

// PutIfAbsent implements ckpt.Store. Where the store does not know the condition, which Probe has found, it looks first: two
// writers that do so at the same time may both believe that they were first.
func (s *Store) PutIfAbsent(ctx context.Context, key string, body ckpt.Body) error {
	t, err := s.ready(ctx, key)
	if err != nil {
		return err
	}
	if !t.create {
		if _, err := s.Stat(ctx, key); err == nil {
			return fmt.Errorf("s3: put %s: %w", key, ckpt.ErrExists)
		} else if !errors.Is(err, ckpt.ErrNotFound) {
			return err
		}
		return s.put(ctx, key, body, t.checksum, condition{})
	}
	return s.put(ctx, key, body, t.checksum, condition{absent: true})
}

// Put implements ckpt.Store.
func (s *Store) Put(ctx context.Context, key string, body ckpt.Body) error {
	t, err := s.ready(ctx, key)
	if err != nil {
		return err
	}
	return s.put(ctx, key, body, t.checksum, condition{})
}

// PutIfMatch implements ckpt.Store.
func (s *Store) PutIfMatch(ctx context.Context, key, etag string, body ckpt.Body) error {
	t, err := s.ready(ctx, key)
	if err != nil {
		return err
	}
	if !t.replace {
		return fmt.Errorf("s3: put %s: %s does not replace conditionally; `phalanx store probe` shows it", key, s.place())
	}
	return s.put(ctx, key, body, t.checksum, condition{etag: etag})
}

// ready tries the store out before the first write, when nobody has done so.
func (s *Store) ready(ctx context.Context, key string) (*tried, error) {
	if err := check(ctx, "put", key); err != nil {
		return nil, err
	}
	if s.tried.Load() == nil {
		if _, err := s.Probe(ctx); err != nil {
			return nil, fmt.Errorf("s3: put %s: the store was not tried out yet: %w", key, unwritten{err})
		}
	}
	return s.tried.Load(), nil
}

// unwritten hides that the outcome of a probe is unknown: the write that wanted it did not happen.
type unwritten struct{ error }

func (u unwritten) Unwrap() error { return u.error }

func (u unwritten) Is(target error) bool {
	return target == ckpt.ErrUnavailable && errors.Is(u.error, ckpt.ErrConflict)
}

// put is one PUT, or two when the first was refused for credentials that have ended.
func (s *Store) put(ctx context.Context, key string, body ckpt.Body, way Checksum, cond condition) error {
	if body.Size > MaxObjectBytes {
		return fmt.Errorf("s3: put %s: %d bytes are more than one PUT takes (%d); write smaller objects", key, body.Size, int64(MaxObjectBytes))
	}
	if body.Size == 0 && body.CRC64NVME != ckpt.Checksum(nil) { // nothing will be read
		return fmt.Errorf("s3: put %s: an empty body announced with crc64nvme %s: %w", key, body.CRC64NVME, ckpt.ErrCorrupt)
	}
	o := minio.PutObjectOptions{DisableMultipart: true, DisableContentSha256: true, UserMetadata: map[string]string{}}
	switch {
	case cond.absent:
		o.SetMatchETagExcept("*")
	case cond.etag != "":
		o.SetMatchETag(cond.etag)
	}
	client, md5Text, shaText := s.plain, "", ""
	switch way {
	case ChecksumHeader:
		o.UserMetadata["x-amz-checksum-crc64nvme"] = base64.StdEncoding.EncodeToString(binary.BigEndian.AppendUint64(nil, uint64(body.CRC64NVME)))
	case ChecksumHeaderCRC32C:
		sum, err := digest(ctx, body, crc32.New(crc32.MakeTable(crc32.Castagnoli)))
		if err != nil {
			return fmt.Errorf("s3: put %s: %w", key, err)
		}
		o.UserMetadata["x-amz-checksum-crc32c"] = base64.StdEncoding.EncodeToString(sum)
	case ChecksumMD5:
		sum, err := digest(ctx, body, md5.New()) //nolint:gosec // as above
		if err != nil {
			return fmt.Errorf("s3: put %s: %w", key, err)
		}
		md5Text = base64.StdEncoding.EncodeToString(sum)
	case ChecksumSHA256:
		sum, err := digest(ctx, body, sha256.New())
		if err != nil {
			return fmt.Errorf("s3: put %s: %w", key, err)
		}
		shaText = hex.EncodeToString(sum)
	case ChecksumTrailingUnsigned, ChecksumTrailingSigned:
		if body.Size == 0 {
			break // no frames, and nothing that could be changed on its way
		}
		client, o.Checksum = s.framed, minio.ChecksumCRC64NVME
		o.DisableContentSha256 = way == ChecksumTrailingUnsigned
	case ChecksumNone, ChecksumAuto: // Probe has replaced the second one
	}
	var source *reader
	err := s.try(ctx, "put", key, true, body.Size, func(ctx context.Context) error {
		source = &reader{Reader: body.Reader(), left: body.Size, want: body.CRC64NVME, crc: crc64nvme.New()}
		_, err := client.PutObject(ctx, s.cfg.Bucket, s.full(key), source, body.Size, md5Text, shaText, o)
		return err
	})
	if err != nil && source.err != nil {
		// The body was not sent to its end, so nothing was written, whatever the connection says.
		return fmt.Errorf("s3: put %s: %w", key, source.err)
	}
	var f *failure
	if errors.As(err, &f) && f.cause == causeDigest {
		// The body is as announced, or the reader had failed: it was changed on the way.
		return &failure{verb: "put", key: key, cause: f.cause, text: f.text + ": the body was changed on its way", kinds: []error{ckpt.ErrUnavailable}}
	}
	switch {
	case f == nil:
	case f.cause == causeNotFound && cond.etag == "":
		f.kinds = nil // nobody asked for what is there: the store cannot write there
	case f.cause == causePrecondition && cond.etag != "":
		if _, gone := s.Stat(ctx, key); errors.Is(gone, ckpt.ErrNotFound) {
			return fmt.Errorf("s3: put %s: %w", key, ckpt.ErrNotFound)
		}
	}
	return err
}

// digest reads a body once and refuses one that is not as announced.
func digest(ctx context.Context, body ckpt.Body, h hash.Hash) ([]byte, error) {
	r := &reader{Reader: contextReader{ctx, body.Reader()}, left: body.Size, want: body.CRC64NVME, crc: crc64nvme.New()}
	if n, err := io.Copy(h, r); err != nil || n != body.Size {
		return nil, errors.Join(err, r.err)
	}
	return h.Sum(nil), nil
}

type contextReader struct {
	ctx context.Context
	r   io.Reader
}

func (r contextReader) Read(p []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	return r.r.Read(p)
}

// reader passes a body on and keeps its last bytes back when it does not have the checksum that it must have, so that the
// store never gets it whole: not every store verifies what it gets.
type reader struct {
	io.Reader
	left int64
	want ckpt.CRC
	crc  hash.Hash64
	err  error // why it failed
}

func (r *reader) Read(p []byte) (int, error) {
	if r.err != nil {
		return 0, r.err
	}
	if r.left == 0 {
		return 0, io.EOF
	}
	n, err := r.Reader.Read(p)
	_, _ = r.crc.Write(p[:n]) // never fails
	r.left -= int64(n)
	switch {
	case r.left > 0 && err != nil:
		if errors.Is(err, io.EOF) {
			err = fmt.Errorf("the body ends %d bytes early: %w", r.left, io.ErrUnexpectedEOF)
		}
		r.err = err
	case r.left == 0 && ckpt.CRC(r.crc.Sum64()) != r.want:
		r.err = fmt.Errorf("body has crc64nvme %s, announced %s: %w", ckpt.CRC(r.crc.Sum64()), r.want, ckpt.ErrCorrupt)
	}
	if r.err != nil {
		return 0, r.err
	}
	return n, nil
}

// putForged sends a body with a checksum that it does not have, to see whether the store minds.
func (s *Store) putForged(ctx context.Context, key string, p []byte, way Checksum) error {
	o := minio.PutObjectOptions{DisableMultipart: true, DisableContentSha256: true, UserMetadata: map[string]string{}}
	md5Text, shaText := "", ""
	switch way {
	case ChecksumHeader:
		o.UserMetadata["x-amz-checksum-crc64nvme"] = base64.StdEncoding.EncodeToString(make([]byte, 8))
	case ChecksumHeaderCRC32C:
		o.UserMetadata["x-amz-checksum-crc32c"] = base64.StdEncoding.EncodeToString(make([]byte, 4))
	case ChecksumMD5:
		md5Text = base64.StdEncoding.EncodeToString(make([]byte, md5.Size))
	case ChecksumSHA256:
		shaText = hex.EncodeToString(make([]byte, sha256.Size))
	case ChecksumAuto, ChecksumNone, ChecksumTrailingUnsigned, ChecksumTrailingSigned: // nothing to forge, or minio-go computes it
	}
	return s.try(ctx, "put", key, true, int64(len(p)), func(ctx context.Context) error {
		_, err := s.plain.PutObject(ctx, s.cfg.Bucket, s.full(key), bytes.NewReader(p), int64(len(p)), md5Text, shaText, o)
		return err
	})
}
