// SPDX-License-Identifier: Apache-2.0

package supervise

import (
	"errors"
	"io"
	"log/slog"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"phalanx/cmd/phalanx/internal/settings"
	"phalanx/node"
)

// Signals are heard between two starts: a host may have hundreds of members.
func TestSignalsWhileDaemonsAreStarted(t *testing.T) {
	for _, c := range []struct {
		signals []os.Signal
		code    int
	}{
		{[]os.Signal{unix.SIGTERM}, node.CodePreempted},
		{[]os.Signal{unix.SIGINT, unix.SIGINT}, node.CodeInterrupt},
	} {
		s := settings.Default()
		s.Dir, s.Host, s.Nproc = t.TempDir(), "h", 3
		signals := make(chan os.Signal, 2)
		for _, sig := range c.signals {
			signals <- sig
		}
		started := 0
		o, err := Run(t.Context(), Config{Settings: s, Program: "/bin/false", Daemon: func(int) []string { started++; return []string{"false"} },
			Signals: signals, Stdout: io.Discard, Log: slog.New(slog.DiscardHandler)})
		var p *node.Problem
		if errors.As(err, &p) {
			o.Code = p.Code
		}
		if o.Code != c.code || started > 0 {
			t.Errorf("after %v: code %d and %d daemons, %v; want %d and none", c.signals, o.Code, started, err, c.code)
		}
	}
}
