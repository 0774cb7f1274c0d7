// SPDX-License-Identifier: Apache-2.0

// Package open makes a checkpoint store of its URL: a directory, plain or as file:///DIR; a bucket, s3://BUCKET/PREFIX?…
// (package s3 has the parameters); and mem://NAME, which lives in this process, for tests.
package open

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"phalanx/ckpt"
	"phalanx/ckpt/fs"
	"phalanx/ckpt/mem"
	"phalanx/ckpt/s3"
	"phalanx/ckpt/storewrap"
	"phalanx/internal/nearest"
)

// Mode is what a store is opened for.
type Mode int

// The modes.
const (
	// Read: the store must be there. Nothing is written.
	Read Mode = iota
	// Write: a directory is made when it is missing, and the store is tried out by writing, so that what is wrong with it is
	// found within seconds and not by the first save.
	Write
	// WriteLater is Write for a process that must come up while the store does not answer: then the store is tried out by the
	// first write that finds it. What does not heal by itself is an error now.
	WriteLater
)

// Options are what a program adds to a URL. The zero value is what most want.
type Options struct {
	// Getenv looks up the variables of credentials, proxies and certificates; nil is os.Getenv.
	Getenv func(string) string
	// Budget bounds how long operations are tried again; nil is storewrap.DefaultBudget.
	Budget *storewrap.Budget
	// Observer is told of every try; nil is nobody.
	Observer storewrap.Observer
}

// ErrURL: the text is no URL of a store, or one with parameters that do not exist.
var ErrURL = errors.New("not the URL of a store")

const (
	schemeS3  = "s3://"
	schemeMem = "mem://"
)

// Clean checks a URL without asking anything and returns its one form: the absolute path of a directory, or a URL.
// Its errors are ErrURL.
func Clean(text string) (string, error) {
	switch scheme, rest, found := strings.Cut(text, "://"); {
	case !found:
		if text == "" {
			return "", fmt.Errorf("store \"\": no directory and no URL: %w", ErrURL)
		}
		path, err := filepath.Abs(text)
		if err != nil {
			return "", fmt.Errorf("store %s: %w: %w", text, err, ErrURL)
		}
		return path, nil
	case scheme == "file":
		if !filepath.IsAbs(rest) {
			return "", fmt.Errorf("store %s: write file:///absolute/path: %w", text, ErrURL)
		}
		return filepath.Clean(rest), nil
	case scheme == "s3":
		c, err := s3.ParseURL(text)
		if err != nil {
			return "", fmt.Errorf("%w: %w", err, ErrURL)
		}
		return c.String(), nil
	case scheme == "mem":
		if ckpt.ValidKey(rest) != nil || strings.Contains(rest, "/") {
			return "", fmt.Errorf("store %.60s: write mem://NAME: %w", text, ErrURL)
		}
		return text, nil
	default:
		return "", fmt.Errorf("store of kind %.20q: %s: %w", scheme, nearest.Suggest(scheme, []string{"s3", "file", "mem"}), ErrURL)
	}
}

// Store opens the store that a URL names. Errors are those of the store (ckpt.ErrAuth, ckpt.ErrNotFound, ckpt.ErrReadOnly,
// ckpt.ErrUnavailable, s3.ErrNoBucket, s3.ErrRegion) or ErrURL.
func Store(ctx context.Context, url string, mode Mode, o Options) (ckpt.Store, error) {
	clean, err := Clean(url)
	if err != nil {
		return nil, err
	}
	var s ckpt.Store
	limits := storewrap.Limits{}
	switch {
	case strings.HasPrefix(clean, schemeMem):
		return memory(clean), nil
	case strings.HasPrefix(clean, schemeS3):
		var config s3.Config
		if config, err = s3.ParseURL(clean); err == nil {
			limits = storewrap.Limits{Concurrency: config.Concurrency, BytesPerSecond: config.BytesPerSecond}
			s, err = bucket(ctx, config, mode, o)
		}
	case mode == Read:
		s, err = fs.NewReadOnly(clean)
	default:
		s, err = fs.New(clean)
	}
	if err != nil {
		return nil, err
	}
	if o.Observer != nil {
		s = storewrap.NewMeter(s, o.Observer)
	}
	if limits != (storewrap.Limits{}) {
		s = storewrap.NewLimit(s, limits)
	}
	budget := storewrap.DefaultBudget()
	if o.Budget != nil {
		budget = *o.Budget
	}
	return storewrap.NewRetry(s, budget), nil
}

// laterWait bounds the trial at the start of a process that must come up without the store.
const laterWait = 3 * time.Second

func bucket(ctx context.Context, c s3.Config, mode Mode, o Options) (ckpt.Store, error) {
	getenv := o.Getenv
	if getenv == nil {
		getenv = os.Getenv
	}
	s, err := s3.New(c, getenv)
	if err != nil {
		return nil, err
	}
	if mode == Read {
		err = s.Reach(ctx)
	} else {
		trial, cancel := ctx, context.CancelFunc(func() {})
		if mode == WriteLater {
			trial, cancel = context.WithTimeout(ctx, laterWait)
		}
		_, err = s.Probe(trial)
		if mode == WriteLater && trial.Err() != nil && ctx.Err() == nil {
			err = nil // no answer yet
		}
		cancel()
	}
	if err != nil && (mode != WriteLater || !storewrap.Heals(err)) {
		s.Close()
		return nil, err
	}
	return s, nil
}

// Prober finds what tries a store out below its decorators, nil when the store needs no trying.
func Prober(s ckpt.Store) ckpt.Prober {
	for {
		if p, ok := s.(ckpt.Prober); ok {
			return p
		}
		w, ok := s.(interface{ Unwrap() ckpt.Store })
		if !ok {
			return nil
		}
		s = w.Unwrap()
	}
}

// inProcess are the stores in memory, by their URL.
var inProcess = struct {
	sync.Mutex
	stores map[string]*mem.Store
}{stores: map[string]*mem.Store{}}

func memory(url string) *mem.Store {
	inProcess.Lock()
	defer inProcess.Unlock()
	s, ok := inProcess.stores[url]
	if !ok {
		s = mem.New()
		inProcess.stores[url] = s
	}
	return s
}
