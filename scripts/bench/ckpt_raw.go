// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"

	"phalanx/ckpt"
	"phalanx/ckpt/s3"
)

// rawPlace moves the bytes of a state to and from a store's place with nothing in between: no checksum, no format, no names that
// appear whole. Objects have the size of ours, and as many are under way at once.
type rawPlace interface {
	write(ctx context.Context, source *memoryState) error
	read(ctx context.Context, into *memoryState) error
	remove(ctx context.Context) error
}

func newRawPlace(place string) (rawPlace, error) {
	if !strings.HasPrefix(place, "s3://") {
		return rawFiles{filepath.Join(place, "raw")}, nil
	}
	c, err := s3.ParseURL(place)
	if err != nil {
		return nil, err
	}
	address, secure := strings.CutPrefix(c.Endpoint, "https://")
	client, err := minio.New(strings.TrimPrefix(address, "http://"), &minio.Options{
		Creds: credentials.NewEnvAWS(), Secure: secure, Region: c.Region,
		Transport: &http.Transport{MaxIdleConnsPerHost: 64, WriteBufferSize: 64 << 10, ReadBufferSize: 64 << 10, DisableCompression: true},
	})
	if err != nil {
		return nil, err
	}
	return rawObjects{client, c.Bucket, strings.TrimPrefix(c.Prefix+"/raw", "/")}, nil
}

// rawName is the name of a piece.
func rawName(tensor int, off int64) string { return fmt.Sprintf("%d-%d", tensor, off) }

// rawFiles are files below a folder.
type rawFiles struct{ folder string }

// write puts each piece into a file of its own and syncs it and the folder.
func (r rawFiles) write(_ context.Context, source *memoryState) error {
	if err := os.MkdirAll(r.folder, 0o755); err != nil {
		return err
	}
	err := eachPiece(source, ckpt.DefaultObjectBytes, puts(), func(tensor int, off, end int64) error {
		f, err := os.Create(filepath.Join(r.folder, rawName(tensor, off)))
		if err != nil {
			return err
		}
		defer f.Close()
		if _, err := f.Write(source.data[tensor][off:end]); err != nil {
			return err
		}
		return f.Sync()
	})
	if err != nil {
		return err
	}
	d, err := os.Open(r.folder)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}

// read reads them into memory that is there.
func (r rawFiles) read(_ context.Context, into *memoryState) error {
	return eachPiece(into, ckpt.DefaultObjectBytes, puts(), func(tensor int, off, end int64) error {
		f, err := os.Open(filepath.Join(r.folder, rawName(tensor, off)))
		if err != nil {
			return err
		}
		defer f.Close()
		_, err = f.ReadAt(into.data[tensor][off:end], 0)
		return err
	})
}

func (r rawFiles) remove(context.Context) error { return os.RemoveAll(r.folder) }

// rawObjects are objects below a prefix, sent by single PUTs whose body is neither signed nor summed.
type rawObjects struct {
	client         *minio.Client
	bucket, prefix string
}

func (r rawObjects) write(ctx context.Context, source *memoryState) error {
	return eachPiece(source, ckpt.DefaultObjectBytes, puts(), func(tensor int, off, end int64) error {
		_, err := r.client.PutObject(ctx, r.bucket, r.prefix+"/"+rawName(tensor, off), bytes.NewReader(source.data[tensor][off:end]), end-off,
			minio.PutObjectOptions{DisableMultipart: true, DisableContentSha256: true})
		return err
	})
}

func (r rawObjects) read(ctx context.Context, into *memoryState) error {
	return eachPiece(into, ckpt.DefaultObjectBytes, puts(), func(tensor int, off, end int64) error {
		o, err := r.client.GetObject(ctx, r.bucket, r.prefix+"/"+rawName(tensor, off), minio.GetObjectOptions{})
		if err != nil {
			return err
		}
		defer o.Close()
		_, err = io.ReadFull(o, into.data[tensor][off:end])
		return err
	})
}

func (r rawObjects) remove(ctx context.Context) error {
	for o := range r.client.ListObjects(ctx, r.bucket, minio.ListObjectsOptions{Prefix: r.prefix + "/", Recursive: true}) {
		if o.Err != nil {
			return o.Err
		}
		if err := r.client.RemoveObject(ctx, r.bucket, o.Key, minio.RemoveObjectOptions{}); err != nil {
			return err
		}
	}
	return nil
}
