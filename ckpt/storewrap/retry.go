// SPDX-License-Identifier: Apache-2.0

package storewrap

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"time"

	"github.com/minio/crc64nvme"

	"phalanx/ckpt"
)

// Budget says how long an operation is tried again. The zero value tries once.
type Budget struct {
	// Total is how long after the first try another one may begin.
	Total time.Duration
	// Base is the longest pause after the first failure; it doubles with each further one up to Cap.
	Base, Cap time.Duration
}

// DefaultBudget rides out a store that asks everybody to slow down for minutes.
func DefaultBudget() Budget {
	return Budget{Total: 5 * time.Minute, Base: 200 * time.Millisecond, Cap: 15 * time.Second}
}

// Pause is how long to wait after a failure; failures counts from 1, random is from [0, 1). Many clients that fail together
// come back spread over the whole time, but none at once.
func (b Budget) Pause(failures int, random float64) time.Duration {
	longest := b.Cap
	if shift := failures - 1; shift < 32 && b.Base<<shift < b.Cap {
		longest = b.Base << shift
	}
	return longest/4 + time.Duration(random*float64(longest-longest/4))
}

// Heals reports whether trying again later may help without anybody doing anything.
func Heals(err error) bool {
	return errors.Is(err, ckpt.ErrUnavailable) || errors.Is(err, ckpt.ErrConflict)
}

// Retry tries operations again that failed with what heals by itself (ckpt.ErrUnavailable, ckpt.ErrConflict). When the
// outcome of a write is not known, it reads before it offers the same bytes again: an object that holds these bytes is the
// one that was written. It returns ErrConflict when the budget ends before the outcome is known.
type Retry struct {
	inner  ckpt.Store
	budget Budget
}

var (
	_ ckpt.Store      = (*Retry)(nil)
	_ ckpt.IntoGetter = (*Retry)(nil)
)

// NewRetry wraps a store.
func NewRetry(inner ckpt.Store, budget Budget) *Retry { return &Retry{inner, budget} }

// Capabilities implements ckpt.Store.
func (r *Retry) Capabilities() ckpt.Capabilities { return r.inner.Capabilities() }

// Unwrap returns the store that is wrapped.
func (r *Retry) Unwrap() ckpt.Store { return r.inner }

// do runs op until it succeeds, fails for good, or the budget or ctx ends.
func (r *Retry) do(ctx context.Context, op func() error) error {
	begun := time.Now()
	for failures := 1; ; failures++ {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("ended before a try: %w", err)
		}
		err := op()
		var final finalError
		if errors.As(err, &final) {
			return final.error
		}
		if err == nil || !Heals(err) || ctx.Err() != nil {
			return err
		}
		pause := r.budget.Pause(failures, rand.Float64())
		if time.Since(begun)+pause > r.budget.Total {
			if failures == 1 {
				return err
			}
			return fmt.Errorf("%w (tried %d times in %s)", err, failures, time.Since(begun).Round(time.Second/10))
		}
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			timer.Stop()
			return fmt.Errorf("%w (while waiting to try again: %w)", err, ctx.Err())
		case <-timer.C:
		}
	}
}

// finalError is one that another try would not change.
type finalError struct{ error }

// outcome is what reading tells of a write whose outcome was not known.
type outcome int

const (
	untouched outcome = iota // as before the write: it may be offered again
	written                  // the object holds the bytes
	lost                     // somebody else's write came first
	gone                     // there is no object to replace
)

// settle runs a conditional write until its outcome is known. look says what is there after a try that may have worked.
func (r *Retry) settle(ctx context.Context, write func() error, look func() (outcome, error)) error {
	unknown := error(nil) // of the last try that may have worked
	return r.do(ctx, func() error {
		if unknown == nil {
			err := write()
			if errors.Is(err, ckpt.ErrConflict) {
				unknown = err
			}
			return err
		}
		is, err := look()
		if err == nil && is == untouched {
			if err = write(); err == nil || errors.Is(err, ckpt.ErrCorrupt) { // such a body was not written before either
				return err
			}
			if errors.Is(err, ckpt.ErrExists) || errors.Is(err, ckpt.ErrNotFound) {
				is, err = look() // the try before may have come through just now
			}
		}
		switch {
		case err != nil, is == untouched:
			err = orUnsettled(err)
			conflict := fmt.Errorf("%w; then: %w: %w", unknown, err, ckpt.ErrConflict)
			if !Heals(err) {
				return finalError{conflict}
			}
			return conflict
		case is == written:
			return nil
		case is == gone:
			return ckpt.ErrNotFound
		}
		return ckpt.ErrExists
	})
}

func orUnsettled(err error) error {
	if err == nil {
		return fmt.Errorf("the store refuses the write and shows no other: %w", ckpt.ErrUnavailable)
	}
	return err
}

// PutIfAbsent implements ckpt.Store.
func (r *Retry) PutIfAbsent(ctx context.Context, key string, body ckpt.Body) error {
	err := r.settle(ctx, func() error { return r.inner.PutIfAbsent(ctx, key, body) }, func() (outcome, error) {
		info, err := r.inner.Stat(ctx, key)
		if errors.Is(err, ckpt.ErrNotFound) {
			return untouched, nil
		}
		return r.compare(ctx, info, body, err)
	})
	return named("put", key, err)
}

// PutIfMatch implements ckpt.Store.
func (r *Retry) PutIfMatch(ctx context.Context, key, etag string, body ckpt.Body) error {
	err := r.settle(ctx, func() error { return r.inner.PutIfMatch(ctx, key, etag, body) }, func() (outcome, error) {
		info, err := r.inner.Stat(ctx, key)
		switch {
		case errors.Is(err, ckpt.ErrNotFound):
			return gone, nil
		case err == nil && info.ETag == etag:
			return untouched, nil
		}
		return r.compare(ctx, info, body, err)
	})
	return named("put", key, err)
}

// named says of what a bare sentinel of settle is.
func named(verb, key string, err error) error {
	if err == ckpt.ErrExists || err == ckpt.ErrNotFound { //nolint:errorlint // only the bare ones lack the name
		return fmt.Errorf("%s %s, after its outcome was unknown: %w", verb, key, err)
	}
	return err
}

// compare reads whether an object holds the bytes of a body.
func (r *Retry) compare(ctx context.Context, info ckpt.Info, body ckpt.Body, err error) (outcome, error) {
	if err != nil {
		return untouched, err
	}
	if info.Size != body.Size {
		return lost, nil
	}
	sum := info.CRC64NVME
	if !info.HasCRC {
		if sum, err = r.sum(ctx, info); err != nil {
			return untouched, err
		}
	}
	if sum != body.CRC64NVME {
		return lost, nil
	}
	return written, nil
}

// sum reads an object in pieces and returns its checksum.
func (r *Retry) sum(ctx context.Context, info ckpt.Info) (ckpt.CRC, error) {
	const piece = 8 << 20
	crc := crc64nvme.New()
	for off := int64(0); off < info.Size; {
		p, err := r.inner.Get(ctx, info.Key, off, piece)
		if err != nil {
			return 0, err
		}
		if len(p) == 0 {
			return 0, fmt.Errorf("read %s: it ends at %d of %d bytes: %w", info.Key, off, info.Size, io.ErrUnexpectedEOF)
		}
		_, _ = crc.Write(p) // never fails
		off += int64(len(p))
	}
	return ckpt.CRC(crc.Sum64()), nil
}

// Put implements ckpt.Store. The same bytes again do no harm.
func (r *Retry) Put(ctx context.Context, key string, body ckpt.Body) error {
	return r.do(ctx, func() error { return r.inner.Put(ctx, key, body) })
}

// Get implements ckpt.Store.
func (r *Retry) Get(ctx context.Context, key string, off, n int64) (p []byte, err error) {
	err = r.do(ctx, func() error {
		p, err = r.inner.Get(ctx, key, off, n)
		return err
	})
	return p, err
}

// GetInto implements ckpt.IntoGetter.
func (r *Retry) GetInto(ctx context.Context, key string, off int64, p []byte) (n int, sum ckpt.CRC, err error) {
	err = r.do(ctx, func() error {
		n, sum, err = ckpt.GetInto(ctx, r.inner, key, off, p)
		return err
	})
	return n, sum, err
}

// Stat implements ckpt.Store.
func (r *Retry) Stat(ctx context.Context, key string) (info ckpt.Info, err error) {
	err = r.do(ctx, func() error {
		info, err = r.inner.Stat(ctx, key)
		return err
	})
	return info, err
}

// List implements ckpt.Store.
func (r *Retry) List(ctx context.Context, prefix, after string, limit int) (page []ckpt.Info, err error) {
	err = r.do(ctx, func() error {
		page, err = r.inner.List(ctx, prefix, after, limit)
		return err
	})
	return page, err
}

// Delete implements ckpt.Store.
func (r *Retry) Delete(ctx context.Context, key string) error {
	return r.do(ctx, func() error { return r.inner.Delete(ctx, key) })
}
