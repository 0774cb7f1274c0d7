// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"strings"
)

// WarmVariable is the environment variable with the socket at which a process that was started ahead waits for its place.
const WarmVariable = "PHALANX_WARM"

// WarmAtVariable says, with import, that a Python process waits at the end of import phalanx.torch and not at its hello.
const WarmAtVariable = "PHALANX_WARM_AT"

// Words of WarmMessage.Op, in the order of a takeover. A connection carries one of a process or of a daemon.
const (
	WarmReady = "ready" // a process waits; answered by place when it is wanted, by the end of the connection when it is not
	WarmTake  = "take"  // a daemon wants a process, for Env and Log
	WarmPlace = "place" // to the process: take over with Env, write to Log
	WarmTaken = "taken" // of the process: it has; then to the daemon, with PID and Start
	WarmNone  = "none"  // to the daemon: no process waits
)

// WarmMessage is a line of JSON on the socket of the processes that were started ahead.
type WarmMessage struct {
	Op     string            `json:"op"`
	Member string            `json:"member,omitempty"` // of take: for whom
	Token  string            `json:"token,omitempty"`  // of take: names the start, when the daemon has to find it again
	Env    map[string]string `json:"env,omitempty"`
	Log    string            `json:"log,omitempty"` // absolute path that output is added to
	PID    int               `json:"pid,omitempty"`
	Start  uint64            `json:"start,omitempty"` // start time of the process
}

// maxWarm bounds a message: an environment has far less.
const maxWarm = 1 << 20

// ReadWarm reads one message.
func ReadWarm(r io.Reader) (m WarmMessage, err error) {
	line, err := bufio.NewReader(io.LimitReader(r, maxWarm)).ReadBytes('\n')
	if err != nil {
		return m, fmt.Errorf("read of a process started ahead: %w", err)
	}
	if err := json.Unmarshal(line, &m); err != nil {
		return WarmMessage{}, fmt.Errorf("read of a process started ahead: %w", err)
	}
	for name, value := range m.Env {
		if name == "" || strings.ContainsAny(name, "=\x00") || strings.ContainsRune(value, 0) {
			return WarmMessage{}, fmt.Errorf("read of a process started ahead: %q is no variable", name)
		}
	}
	if strings.ContainsRune(m.Log, 0) || m.Log != "" && m.Log[0] != '/' {
		return WarmMessage{}, fmt.Errorf("read of a process started ahead: log %q is no absolute path", m.Log)
	}
	return m, nil
}

// WriteWarm writes one message.
func WriteWarm(w io.Writer, m WarmMessage) error {
	b, err := json.Marshal(m)
	if err == nil {
		_, err = w.Write(append(b, '\n'))
	}
	if err != nil {
		return fmt.Errorf("write to a process started ahead: %w", err)
	}
	return nil
}
