// SPDX-License-Identifier: Apache-2.0

package s3test

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/pem"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"phalanx/ckpt"
)

// What a new Server knows.
const (
	Bucket = "bucket"
	Region = "test-region-1"
	KeyID  = "AKIDEXAMPLE"
)

// Request is one request that was signed rightly, before it is carried out.
type Request struct {
	Seq         int    // counts all of the server's from 0
	Op          string // PUT, GET, HEAD, LIST, DELETE or STS
	Key         string // in the bucket; the prefix of a LIST
	Conditional bool   // If-Match or If-None-Match
}

// Fault is what goes wrong with a request; the zero value is nothing.
type Fault struct {
	Status int    // answer this status instead, with Code
	Code   string // of S3, such as SlowDown
	Region string // in the answer
	// After: the request is carried out, and then answered with the fault.
	After bool
	// Drop: the connection ends without an answer.
	Drop bool
	// Delay before anything happens.
	Delay time.Duration
	// Rate is how many bytes of its body are read in a second, 0 for all at once.
	Rate int64
	// Cut: a GET ends after so many bytes of its body, if it is not 0.
	Cut int
	// Flip changes a bit of what a GET answers.
	Flip bool
	// Damage changes a bit of the body of a PUT before its checksum is compared.
	Damage bool
	// Stale: a LIST does not show the newest object.
	Stale bool
}

// Flaws are what a server cannot do, for as long as it lives.
type Flaws struct {
	IgnoreConditions bool // conditions are taken and not honoured
	RefuseConditions bool // 501
	IgnoreChecksums  bool // taken, not compared, not kept
	RefuseChecksums  bool // headers and trailers of checksums are refused
	StoreFraming     bool // the pieces of a framed body are stored with their frames
	IgnoreRanges     bool // a GET of a range is answered with everything
	ReadOnly         bool // nothing may be written: AccessDenied
	KeepAll          bool // nothing may be deleted: AccessDenied
}

// Server is a store in memory.
type Server struct {
	*httptest.Server
	Flaws Flaws

	arrived atomic.Int64 // bytes of bodies
	clock   atomic.Int64 // what the server adds to the time, in nanoseconds
	asking  sync.Mutex   // held while the hook runs; taken before mu
	mu      sync.Mutex   // guards the fields below
	hook    func(Request) Fault
	objects map[string]object
	seq     int
	counts  map[string]int
	keys    map[string]credential
	newest  string
	issued  time.Duration // how long credentials of the token service live
}

type object struct {
	content []byte
	crc     ckpt.CRC
	hasCRC  bool
	etag    string
}

type credential struct {
	secret, token string
	expired       bool
}

// NewServer starts a server; secure is TLS with a certificate that only CAFile knows.
func NewServer(t testing.TB, secure bool) *Server {
	s := &Server{objects: map[string]object{}, counts: map[string]int{}, keys: map[string]credential{}, issued: time.Hour}
	s.keys[KeyID] = credential{secret: randomText()}
	s.Server = httptest.NewUnstartedServer(http.HandlerFunc(s.serve))
	s.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelInfo) // clients that give up are what tests want
	if secure {
		s.StartTLS()
	} else {
		s.Start()
	}
	t.Cleanup(s.Close)
	return s
}

func randomText() string {
	b := make([]byte, 20)
	_, _ = rand.Read(b) // never fails
	return hex.EncodeToString(b)
}

// SetClock sets how far the server's clock is from this machine's.
func (s *Server) SetClock(ahead time.Duration) { s.clock.Store(int64(ahead)) }

func (s *Server) now() time.Time { return time.Now().Add(time.Duration(s.clock.Load())) }

// Hook sets what is asked about each request; nil is no fault. It runs for one request at a time, and may expire keys and set
// the clock: what comes after this request finds it so.
func (s *Server) Hook(hook func(Request) Fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hook = hook
}

// StoreURL is the server's bucket as a URL of a store; more are parameters.
func (s *Server) StoreURL(prefix string, more ...string) string {
	parameters := append([]string{"endpoint=" + s.URL, "region=" + Region}, more...)
	return "s3://" + Bucket + "/" + prefix + "?" + strings.Join(parameters, "&")
}

// Env is an environment in which the server can be used.
func (s *Server) Env(t testing.TB) map[string]string {
	s.mu.Lock()
	env := map[string]string{"AWS_ACCESS_KEY_ID": KeyID, "AWS_SECRET_ACCESS_KEY": s.keys[KeyID].secret}
	s.mu.Unlock()
	if s.TLS != nil {
		env["AWS_CA_BUNDLE"] = s.CAFile(t)
	}
	return env
}

// CAFile writes the certificate of a secure server into a file.
func (s *Server) CAFile(t testing.TB) string {
	path := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// Lookup makes a function of an environment, as os.Getenv is one.
func Lookup(env map[string]string) func(string) string {
	return func(name string) string { return env[name] }
}

// AddKey makes a key known and returns its secret; with a token it is a temporary one.
func (s *Server) AddKey(id, token string) (secret string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	secret = randomText()
	s.keys[id] = credential{secret: secret, token: token}
	return secret
}

// Expire ends a key: requests with it are answered with ExpiredToken.
func (s *Server) Expire(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := s.keys[id]
	k.expired = true
	s.keys[id] = k
}

// Revoke forgets a key: requests with it are answered with InvalidAccessKeyId.
func (s *Server) Revoke(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.keys, id)
}

// Issue sets how long the credentials live that the token service gives out.
func (s *Server) Issue(lifetime time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.issued = lifetime
}

// Count is how many requests of a kind have come, rightly signed.
func (s *Server) Count(op string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.counts[op]
}

// Arrived is how many bytes of bodies have come, of requests that are still under way too.
func (s *Server) Arrived() int64 { return s.arrived.Load() }

// arriving counts what is read of a body, and reads no faster than it should.
type arriving struct {
	io.ReadCloser
	server *Server
	rate   int64
}

func (a *arriving) Read(p []byte) (int, error) {
	if a.rate > 0 {
		p = p[:min(int64(len(p)), max(a.rate/50, 1))]
	}
	n, err := a.ReadCloser.Read(p)
	a.server.arrived.Add(int64(n))
	if a.rate > 0 {
		time.Sleep(time.Duration(n) * time.Second / time.Duration(a.rate))
	}
	return n, err
}

// Content is what is stored under a key of the bucket.
func (s *Server) Content(key string) (string, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	o, ok := s.objects[key]
	return string(o.content), ok
}

// Keys is how many objects there are.
func (s *Server) Keys() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.objects)
}
