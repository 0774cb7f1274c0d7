// SPDX-License-Identifier: Apache-2.0

package s3

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"time"

	"phalanx/ckpt"
)

const (
	probeTimeout = 20 * time.Second
	cleanTimeout = 5 * time.Second
	probePrefix  = "phalanx-probe-"
)

// Reach lists one key: bucket, region, credentials, rights to read and the clock show in its error. It writes nothing.
func (s *Store) Reach(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, probeTimeout, fmt.Errorf("no answer within %s: %w: %w", probeTimeout, ckpt.ErrUnavailable, context.DeadlineExceeded))
	defer cancel()
	if _, err := s.List(ctx, "", "", 1); err != nil {
		return overdue(ctx, err)
	}
	return nil
}

// overdue adds why a probe was cut short, when it was.
func overdue(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, context.Canceled) {
		return fmt.Errorf("%w: %w", err, cause)
	}
	return err
}

// trialPause is how long the failure of a trial answers those that would try next: many writers wait for one.
const trialPause = time.Second

// Probe implements ckpt.Prober. The second call of a store answers from the first that succeeded.
func (s *Store) Probe(ctx context.Context) (*ckpt.Probe, error) {
	select {
	case s.probing <- struct{}{}:
		defer func() { <-s.probing }()
	case <-ctx.Done():
		return nil, fmt.Errorf("s3: wait for the trial of %s: %w", s.place(), ctx.Err())
	}
	if t := s.tried.Load(); t != nil {
		return t.probe, nil
	}
	if time.Since(s.failed) < trialPause {
		return nil, s.failure
	}
	p, err := s.trial(ctx)
	if err != nil && ctx.Err() == nil {
		s.failure, s.failed = err, time.Now()
	}
	return p, err
}

// trial tries the store out; the caller owns failure.
func (s *Store) trial(ctx context.Context) (*ckpt.Probe, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, probeTimeout, fmt.Errorf("not done within %s: %w: %w", probeTimeout, ckpt.ErrUnavailable, context.DeadlineExceeded))
	defer cancel()
	random := make([]byte, 1024)
	_, _ = rand.Read(random) // never fails
	p := &prober{s: s, key: probePrefix + hex.EncodeToString(random[:10]), body: random}
	t, err := p.run(ctx)
	if err != nil {
		return nil, overdue(ctx, err)
	}
	s.tried.Store(t)
	t.probe.Capabilities = s.Capabilities()
	return t.probe, nil
}

// prober tries a store out with one object.
type prober struct {
	s         *Store
	key       string
	body      []byte
	abilities []ckpt.Ability
}

func (p *prober) add(name string, has bool, detail, lost string) {
	if has {
		lost = ""
	}
	p.abilities = append(p.abilities, ckpt.Ability{Name: name, Has: has, Detail: detail, Lost: lost})
}

func (p *prober) run(ctx context.Context) (t *tried, err error) {
	s := p.s
	if _, err := s.List(ctx, "", "", 1); err != nil {
		return nil, err
	}
	p.add("list", true, "bucket, region, credentials and clock are right", "")
	defer func() { // also when ctx has ended
		clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanTimeout)
		defer cancel()
		gone := s.Delete(clean, p.key)
		if err == nil {
			p.add("delete", gone == nil, message(gone), "retention and gc cannot remove anything: everything is kept, and so is "+p.key)
			t.probe = &ckpt.Probe{Store: s.place(), Abilities: p.abilities}
		}
	}()
	t = &tried{}
	verified, err := p.checksum(ctx, t)
	if err != nil {
		return nil, err
	}
	info, err := s.Stat(ctx, p.key)
	if err != nil {
		return nil, err
	}
	t.keeps = info.HasCRC && info.CRC64NVME == ckpt.Checksum(p.body) && verified
	p.add("write", true, "single PUT of up to 5 GiB", "")
	p.add("checksum is verified", verified, "mode "+string(t.checksum), "a body that is changed on its way is found only when it is read")
	p.add("checksum is kept", t.keeps, "HEAD gives crc64nvme", "whether an object is whole is known only by reading it: verify --level head proves sizes alone")
	if err := p.conditions(ctx, t); err != nil {
		return nil, err
	}
	return t, p.listing(ctx)
}

func message(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// checksum finds the first way to send a checksum that works and is verified, else the first that works, and leaves an object
// that was sent in that way.
func (p *prober) checksum(ctx context.Context, t *tried) (verified bool, err error) {
	ways := checksums
	if p.s.cfg.Checksum != ChecksumAuto {
		ways = []Checksum{p.s.cfg.Checksum}
	}
	var refusals []error
	works := Checksum("")
	for _, way := range ways {
		switch err := p.send(ctx, way); {
		case errors.Is(err, errUnfit), err != nil && refused(err):
			refusals = append(refusals, fmt.Errorf("checksum=%s: %w", way, err))
			continue
		case err != nil:
			return false, err
		}
		if works == "" {
			works = way
		}
		if verified, err = p.verifies(ctx, way); err != nil {
			return false, err
		}
		if verified {
			t.checksum = way
			return true, nil
		}
	}
	if works == "" {
		return false, fmt.Errorf("s3: %s takes no object: %w", p.s.place(), errors.Join(refusals...))
	}
	t.checksum = works
	return false, p.send(ctx, works)
}

var errUnfit = errors.New("what is stored is not what was sent")

// send writes the object and reads it back: some servers store the framing of a body as its content.
func (p *prober) send(ctx context.Context, way Checksum) error {
	if err := p.s.put(ctx, p.key, ckpt.Bytes(p.body), way, condition{}); err != nil {
		return err
	}
	stored, err := p.s.Get(ctx, p.key, 0, -1)
	if err != nil {
		return err
	}
	if !bytes.Equal(stored, p.body) {
		return errUnfit
	}
	part, err := p.s.Get(ctx, p.key, 100, 200)
	if err == nil && !bytes.Equal(part, p.body[100:300]) {
		err = fmt.Errorf("s3: get %s: a range of it holds other bytes than the whole; this store cannot be used", p.key)
	}
	return err
}

// verifies reports whether the store refuses a body that has not the checksum that came with it.
func (p *prober) verifies(ctx context.Context, way Checksum) (bool, error) {
	if way == ChecksumNone {
		return false, nil
	}
	if way == ChecksumTrailingSigned || way == ChecksumTrailingUnsigned {
		info, err := p.s.Stat(ctx, p.key) // who gives the checksum back has understood it
		return err == nil && info.HasCRC, err
	}
	err := p.s.putForged(ctx, p.key, p.body, way)
	var f *failure
	if errors.As(err, &f) && (f.cause == causeDigest || f.cause == causeUnsupported || f.cause == causeOther || f.cause == causeAuth) {
		return true, nil
	}
	return false, err
}

// conditions finds out whether the store honours conditions, by offering what it must refuse.
func (p *prober) conditions(ctx context.Context, t *tried) error {
	other := append([]byte("other"), p.body...)
	put := func(c condition) error { return p.s.put(ctx, p.key, ckpt.Bytes(other), t.checksum, c) }
	const lost = "two leaders that lost sight of each other are told apart by the job's log only, and not once all its hosts are gone"
	err := put(condition{absent: true})
	switch {
	case errors.Is(err, ckpt.ErrExists):
		t.create = true
		p.add("conditional create", true, "If-None-Match: *", "")
	case err == nil:
		p.add("conditional create", false, "If-None-Match: * is ignored", lost)
	case refused(err):
		p.add("conditional create", false, err.Error(), lost)
	default:
		return err
	}
	if t.create { // and it must not refuse what is absent
		if err := p.s.Delete(ctx, p.key); err == nil {
			if err := put(condition{absent: true}); err != nil {
				return fmt.Errorf("s3: %s refuses to create what is absent: %w", p.s.place(), err)
			}
		}
	}
	const lostReplace = "hints and journals are replaced without a condition"
	err = put(condition{etag: "00000000000000000000000000000000"})
	switch {
	case errors.Is(err, ckpt.ErrExists):
	case err == nil:
		p.add("conditional replace", false, "If-Match is ignored", lostReplace)
		return nil
	case refused(err), errors.Is(err, ckpt.ErrNotFound):
		p.add("conditional replace", false, err.Error(), lostReplace)
		return nil
	default:
		return err
	}
	info, err := p.s.Stat(ctx, p.key)
	if err != nil {
		return err
	}
	err = put(condition{etag: info.ETag})
	switch t.replace = err == nil; {
	case t.replace:
		p.add("conditional replace", true, "If-Match: ETAG", "")
	case refused(err), errors.Is(err, ckpt.ErrExists):
		p.add("conditional replace", false, err.Error(), lostReplace)
	default:
		return err
	}
	return nil
}

// listing checks that a list shows what was just written.
func (p *prober) listing(ctx context.Context) error {
	page, err := p.s.List(ctx, p.key, strings.TrimSuffix(p.key, p.key[len(p.key)-1:]), 1)
	if err != nil {
		return err
	}
	seen := len(page) == 1 && page[0].Key == p.key
	p.add("list after write", seen, "list-type=2 with start-after, in order", "a checkpoint that was just published may not be found yet")
	return nil
}
