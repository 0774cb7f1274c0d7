// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"
)

// trace is everything worth knowing that happened, in order, with the simulated time since the start.
type trace struct {
	begun time.Time
	watch func(who, message string) // called for each line of a daemon

	mu    sync.Mutex
	lines []string
}

func (t *trace) add(who, format string, args ...any) {
	line := fmt.Sprintf("%9.4f %-8s %s", time.Since(t.begun).Seconds(), who, fmt.Sprintf(format, args...))
	t.mu.Lock()
	defer t.mu.Unlock()
	t.lines = append(t.lines, line)
}

// String is the whole trace, a line an event.
func (t *trace) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.Join(t.lines, "\n")
}

// logger returns the log of a daemon: changes go to the trace.
func (t *trace) logger(who string, level slog.Level) *slog.Logger {
	return slog.New(&traceHandler{trace: t, who: who, level: level})
}

type traceHandler struct {
	trace *trace
	who   string
	level slog.Level
	attrs string
}

func (h *traceHandler) Enabled(_ context.Context, l slog.Level) bool { return l >= h.level }

func (h *traceHandler) Handle(_ context.Context, r slog.Record) error {
	var b strings.Builder
	if r.Level != slog.LevelInfo {
		b.WriteString(r.Level.String() + " ")
	}
	b.WriteString(r.Message)
	r.Attrs(func(a slog.Attr) bool { fmt.Fprintf(&b, " %s=%v", a.Key, a.Value); return true })
	h.trace.add(h.who, "%s%s", b.String(), h.attrs)
	h.trace.watch(h.who, r.Message)
	return nil
}

func (h *traceHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	n := *h
	for _, a := range attrs {
		if a.Key != "member" && a.Key != "server" {
			n.attrs += fmt.Sprintf(" %s=%v", a.Key, a.Value)
		}
	}
	return &n
}

func (h *traceHandler) WithGroup(string) slog.Handler { return h }
