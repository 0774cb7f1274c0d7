// SPDX-License-Identifier: Apache-2.0

package intake

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"sync"
	"time"

	"phalanx/ckpt"
	"phalanx/ckpt/view"
)

// Beside ends the name of the job that keeps what the programs of a job with steps save of their own.
const Beside = "-dcp"

// Path is the prefix of all requests.
const Path = "/v1/checkpoint/"

// Service serves the checkpoints of a store. Its fields are set before Register and not changed after.
type Service struct {
	Store ckpt.Store
	// Job is that of requests that name none.
	Job string
	// Own, unless "", is a job whose chain is not written to.
	Own string
	// Retain, unless nil, is applied after each publish, as the leader of a job does.
	Retain *ckpt.Policy
	Grace  time.Duration // how long the data of forgotten and abandoned ones stay
	By     string        // who forgets
	// Allowed says whether a request may be answered; nil is yes.
	Allowed func(*http.Request) bool
	Log     *slog.Logger

	mu       sync.Mutex // guards what follows; never held over I/O
	views    []*view.View
	pruning  bool
	prunings sync.WaitGroup
	stop     context.Context
	end      context.CancelFunc
}

// Register adds the requests to a mux.
func (s *Service) Register(mux *http.ServeMux) {
	s.stop, s.end = context.WithCancel(context.Background())
	if s.Log == nil {
		s.Log = slog.New(slog.DiscardHandler)
	}
	mux.HandleFunc("POST "+Path+"begin", answering(s, s.begin))
	mux.HandleFunc("POST "+Path+"write", answering(s, s.write))
	mux.HandleFunc("POST "+Path+"publish", answering(s, s.publish))
	mux.HandleFunc("POST "+Path+"abort", answering(s, s.abort))
	mux.HandleFunc("POST "+Path+"open", answering(s, s.open))
	mux.HandleFunc("POST "+Path+"list", answering(s, s.list))
	mux.HandleFunc("POST "+Path+"read", s.read)
	mux.HandleFunc("POST "+Path+"file", s.file)
}

// Close ends what goes on in the background and waits for it.
func (s *Service) Close() {
	if s.end != nil {
		s.end()
	}
	s.prunings.Wait()
}

// Failure is the answer to a request that failed.
type Failure struct {
	Error string `json:"error"`
	// Kind is what a program branches on: fenced, incomplete, damaged, not_found, format, store, space, usage, other.
	Kind string `json:"kind"`
}

// usageError is a request that cannot be meant.
type usageError struct{ error }

func usage(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

// kindOf tells apart what a program can do something about.
func kindOf(err error) (kind string, status int) {
	var u usageError
	switch {
	case errors.As(err, &u):
		return "usage", http.StatusBadRequest
	case errors.Is(err, ckpt.ErrFenced):
		return "fenced", http.StatusConflict
	case errors.Is(err, ckpt.ErrIncomplete):
		return "incomplete", http.StatusConflict
	case errors.Is(err, ckpt.ErrNotFound), errors.Is(err, ckpt.ErrNoCheckpoint):
		return "not_found", http.StatusNotFound
	case errors.Is(err, ckpt.ErrCorrupt):
		return "damaged", http.StatusConflict
	case errors.Is(err, ckpt.ErrFormat):
		return "format", http.StatusUnprocessableEntity
	case errors.Is(err, ckpt.ErrNoSpace):
		return "space", http.StatusInsufficientStorage
	case errors.Is(err, ckpt.ErrUnavailable), errors.Is(err, ckpt.ErrAuth), errors.Is(err, ckpt.ErrReadOnly), errors.Is(err, ckpt.ErrConflict):
		return "store", http.StatusServiceUnavailable
	}
	return "other", http.StatusInternalServerError
}

func failed(w http.ResponseWriter, err error) {
	kind, status := kindOf(err)
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(Failure{err.Error(), kind}) // the program has gone: nobody to tell
}

// maxRequest bounds the body of a request: an index is the largest.
const maxRequest = 256 << 20

// decodeBody reads a request.
func decodeBody[T any](s *Service, w http.ResponseWriter, r *http.Request) (T, error) {
	var v T
	if s.Allowed != nil && !s.Allowed(r) {
		return v, usage("this socket belongs to another user")
	}
	b, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxRequest))
	if err == nil {
		err = json.Unmarshal(b, &v)
	}
	if err != nil {
		return v, usage("the request cannot be read: %w", err)
	}
	return v, nil
}

// answering makes a handler of a function from a request to an answer.
func answering[Q, A any](s *Service, f func(context.Context, Q) (A, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		q, err := decodeBody[Q](s, w, r)
		if err == nil {
			var a A
			if a, err = f(r.Context(), q); err == nil {
				w.Header().Set("Content-Type", "application/json")
				_ = json.NewEncoder(w).Encode(a) // as above
				return
			}
		}
		failed(w, err)
	}
}

// job is the job that a request means.
func (s *Service) job(name string) (string, error) {
	if name == "" {
		name = s.Job
	}
	if err := (ckpt.Attempt{Job: name}).Validate(); err != nil {
		return "", usageError{err}
	}
	return name, nil
}

// attempt is the attempt that a request means.
func (s *Service) attempt(job, name string) (ckpt.Attempt, error) {
	job, err := s.job(job)
	if err != nil {
		return ckpt.Attempt{}, err
	}
	a, err := ckpt.ParseAttempt(job, name)
	if err != nil {
		return a, usageError{err}
	}
	return a, nil
}

// newTerm is a number that no attempt has: those of leaders are terms of Raft, which never grow so high.
func newTerm() uint64 { return rand.Uint64()>>2 | 1<<61 }
