// SPDX-License-Identifier: Apache-2.0

package control

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"phalanx"
	"phalanx/node"
)

// maxAnswer bounds what a daemon may answer: the status of a large job is a few MiB.
const maxAnswer = 64 << 20

// Refused is a daemon's answer that it will not do what was asked.
type Refused struct {
	Status  int    // of HTTP
	Message string `json:"error"`
	Hint    string `json:"hint"`
	Code    string `json:"code"` // a stable word
}

func (r *Refused) Error() string { return r.Message }

// Status asks a daemon for the job's status, with the last transitions when explain is set.
func Status(ctx context.Context, l Living, explain bool) (*node.Status, error) {
	path := "/v1/status"
	if explain {
		path += "?explain=1"
	}
	s := new(node.Status)
	if err := call(ctx, l, http.MethodGet, path, nil, s); err != nil {
		return nil, err
	}
	return s, nil
}

// Stop asks a daemon to end its member in order: finish the step, publish, leave.
func Stop(ctx context.Context, l Living, why string) error {
	return call(ctx, l, http.MethodPost, "/v1/stop", map[string]any{"why": why}, nil)
}

// Drain asks for a member to leave at a step boundary.
func Drain(ctx context.Context, l Living, member phalanx.MemberID, why string) error {
	return call(ctx, l, http.MethodPost, "/v1/drain", map[string]any{"member": member, "why": why}, nil)
}

// Resize asks for another number of ranks in a full world.
func Resize(ctx context.Context, l Living, want int, why string) error {
	return call(ctx, l, http.MethodPost, "/v1/resize", map[string]any{"want": want, "why": why}, nil)
}

// call makes one request. The connection is not kept: verbs make one or two.
func call(ctx context.Context, l Living, method, path string, ask, answer any) error {
	failed := func(err error) error {
		return fmt.Errorf("ask daemon of %s (pid %d): %w", l.Member, l.PID, err)
	}
	var body io.Reader = http.NoBody
	if ask != nil {
		b, err := json.Marshal(ask)
		if err != nil {
			return failed(err)
		}
		body = bytes.NewReader(b)
	}
	request, err := http.NewRequestWithContext(ctx, method, "http://daemon"+path, body)
	if err != nil {
		return failed(err)
	}
	request.Header.Set("Content-Type", "application/json")
	transport := &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", l.Socket)
		},
	}
	response, err := transport.RoundTrip(request)
	if err != nil {
		return failed(err)
	}
	defer response.Body.Close()
	b, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer))
	if err != nil {
		return failed(err)
	}
	if response.StatusCode >= 400 {
		r := &Refused{}
		if json.Unmarshal(b, r) != nil || r.Message == "" {
			r.Message = strings.TrimSpace(string(b))
		}
		r.Status = response.StatusCode
		return r
	}
	if answer == nil {
		return nil
	}
	if err := json.Unmarshal(b, answer); err != nil {
		return failed(err)
	}
	return nil
}

// patience is how long a daemon may think before the next one is asked beside it: one that is stopped takes connections and
// never answers.
const patience = 400 * time.Millisecond

// AnyStatus asks the living daemons of a directory; the first answer counts. ErrNobody: none lives.
func AnyStatus(ctx context.Context, dir string, explain bool) (*node.Status, error) {
	living := Find(dir)
	if len(living) == 0 {
		return nil, ErrNobody
	}
	type answer struct {
		status *node.Status
		err    error
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	answers := make(chan answer, len(living)) // one each: nobody waits for a reader
	var errs []error
	for asked := 0; ; {
		var next <-chan time.Time
		if asked < len(living) {
			l := living[asked]
			go func() { // ends with its request, by ctx at the latest
				s, err := Status(ctx, l, explain)
				answers <- answer{s, err}
			}()
			asked++
			next = time.After(patience)
		}
		select {
		case <-next:
		case a := <-answers:
			if a.err == nil {
				return a.status, nil
			}
			if errs = append(errs, a.err); len(errs) == len(living) {
				return nil, errors.Join(errs...)
			}
		}
	}
}

// ErrNobody is returned when no daemon of the job lives on this host.
var ErrNobody = errors.New("no living daemon")
