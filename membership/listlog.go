// SPDX-License-Identifier: Apache-2.0

package membership

import (
	"bytes"
	"context"
	"log"
	"log/slog"
	"strings"
	"time"
)

// listLogger carries memberlist's lines to slog, one level lower than it thinks: what it calls an error is a packet that
// did not arrive. Equal beginnings within ten seconds are one line with a count, since a member with a wrong key would
// otherwise write several a second.
func listLogger(to *slog.Logger) *log.Logger {
	return log.New(&listWriter{log: to, seen: map[string]*repeated{}}, "", 0)
}

const (
	repeatWindow = 10 * time.Second
	repeatKeys   = 64 // forget all beyond that: lines are few kinds
	repeatPrefix = 40
)

// listWriter is called under the log.Logger's own lock, so it needs none.
type listWriter struct {
	log  *slog.Logger
	seen map[string]*repeated
}

type repeated struct {
	until time.Time
	count int
}

// Write takes one line such as "[WARN] memberlist: text".
func (w *listWriter) Write(line []byte) (int, error) {
	level, text := splitLevel(string(bytes.TrimSpace(line)))
	if !w.log.Enabled(context.Background(), level) {
		return len(line), nil
	}
	now := time.Now()
	key := text[:min(len(text), repeatPrefix)]
	r := w.seen[key]
	if r != nil && now.Before(r.until) {
		r.count++
		return len(line), nil
	}
	attrs := []any{"text", text}
	if r != nil && r.count > 0 {
		attrs = append(attrs, "repeated", r.count)
	}
	if strings.Contains(text, "could decrypt") || strings.Contains(text, "not encrypted") {
		attrs = append(attrs, "hint", "another gossip key: give all hosts of the job the same job key")
	}
	if len(w.seen) >= repeatKeys {
		clear(w.seen)
	}
	w.seen[key] = &repeated{until: now.Add(repeatWindow)}
	w.log.Log(context.Background(), level, "memberlist", attrs...)
	return len(line), nil
}

func splitLevel(line string) (slog.Level, string) {
	for _, l := range []struct {
		prefix string
		level  slog.Level
	}{
		{"[ERR] ", slog.LevelWarn},
		{"[ERROR] ", slog.LevelWarn},
		{"[WARN] ", slog.LevelInfo},
		{"[INFO] ", slog.LevelDebug},
		{"[DEBUG] ", slog.LevelDebug},
	} {
		if rest, ok := strings.CutPrefix(line, l.prefix); ok {
			return l.level, strings.TrimPrefix(rest, "memberlist: ")
		}
	}
	return slog.LevelDebug, line
}
