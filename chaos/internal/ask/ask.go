// SPDX-License-Identifier: Apache-2.0

// Package ask is how tests look at a job of real processes: by the status of its daemons, and by the history in it.
package ask

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"phalanx/elastic"
	"phalanx/node"
)

// Daemon reads the status, with the history, of the daemon with this index in a job's directory. It waits so long at most. The
// socket is a path, which leads from one network namespace into another.
func Daemon(ctx context.Context, dir string, index int, wait time.Duration) (*node.Status, error) {
	var f node.DaemonFile
	b, err := os.ReadFile(node.NewPaths(dir, "").DaemonFile(index))
	if err == nil {
		err = json.Unmarshal(b, &f)
	}
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	c := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", f.Socket)
	}}}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://daemon/v1/status?explain=1", http.NoBody)
	if err != nil {
		return nil, err
	}
	answer, err := c.Do(request)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	s := new(node.Status)
	if err := json.NewDecoder(answer.Body).Decode(s); err != nil {
		return nil, err
	}
	if answer.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("status of daemon %d in %s: %s", index, dir, answer.Status)
	}
	return s, nil
}

// Lines writes transitions for a failing test: a line each, and one for each piece of evidence.
func Lines(history []elastic.Transition) string {
	var b strings.Builder
	for _, t := range history {
		fmt.Fprintf(&b, "  %s %s: world %v lost %v healing %v resume %d newest %d", t.Generation, t.Cause, t.Members, t.Lost, t.Healing, t.ResumeStep, t.Newest)
		if t.Seconds != nil {
			fmt.Fprintf(&b, " %+v", *t.Seconds)
		}
		for _, e := range t.Evidence {
			fmt.Fprintf(&b, "\n      %s", e)
		}
		b.WriteByte('\n')
	}
	return b.String()
}
