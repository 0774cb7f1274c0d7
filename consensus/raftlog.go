// SPDX-License-Identifier: Apache-2.0

package consensus

import (
	"context"
	"fmt"
	"io"
	"log"
	"log/slog"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
)

// repeatAfter is how long a warning of raft is held back once it was written: it repeats one for each failed heartbeat.
const repeatAfter = 10 * time.Second

// raftLogger passes raft's messages on: what it calls information is debugging here, what it calls an error is mostly a
// peer that does not answer, which is a warning.
type raftLogger struct {
	hclog.Logger // the null logger, for methods that raft does not call
	slog         *slog.Logger
	quiet        *quiet
}

// quiet remembers when each message was written last. Messages are constants of raft, so there are few.
type quiet struct {
	mu   sync.Mutex
	last map[string]time.Time
}

func newRaftLogger(logger *slog.Logger) *raftLogger {
	return &raftLogger{hclog.NewNullLogger(), logger, &quiet{last: map[string]time.Time{}}}
}

func (q *quiet) passes(message string, now time.Time) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if last, ok := q.last[message]; ok && now.Sub(last) < repeatAfter {
		return false
	}
	q.last[message] = now
	return true
}

func (l *raftLogger) Log(level hclog.Level, message string, args ...any) {
	to := slog.LevelDebug
	if level >= hclog.Warn {
		if l.quiet.passes(message, time.Now()) {
			to = slog.LevelWarn
		}
	}
	ctx := context.Background()
	if !l.slog.Enabled(ctx, to) {
		return
	}
	for i, arg := range args {
		if f, ok := arg.(hclog.Format); ok && len(f) > 0 {
			if format, ok := f[0].(string); ok {
				args[i] = fmt.Sprintf(format, f[1:]...)
			}
		}
	}
	l.slog.Log(ctx, to, "raft: "+message, args...)
}

func (l *raftLogger) Trace(message string, args ...any) { l.Log(hclog.Trace, message, args...) }
func (l *raftLogger) Debug(message string, args ...any) { l.Log(hclog.Debug, message, args...) }
func (l *raftLogger) Info(message string, args ...any)  { l.Log(hclog.Info, message, args...) }
func (l *raftLogger) Warn(message string, args ...any)  { l.Log(hclog.Warn, message, args...) }
func (l *raftLogger) Error(message string, args ...any) { l.Log(hclog.Error, message, args...) }

func (l *raftLogger) With(args ...any) hclog.Logger {
	return &raftLogger{l.Logger, l.slog.With(args...), l.quiet}
}

func (l *raftLogger) Named(string) hclog.Logger      { return l }
func (l *raftLogger) ResetNamed(string) hclog.Logger { return l }

func (l *raftLogger) StandardLogger(*hclog.StandardLoggerOptions) *log.Logger {
	return log.New(l.StandardWriter(nil), "", 0)
}

func (l *raftLogger) StandardWriter(*hclog.StandardLoggerOptions) io.Writer { return lineWriter{l} }

// lineWriter logs each line written to it: the snapshot store of raft has such a logger.
type lineWriter struct{ logger *raftLogger }

func (w lineWriter) Write(line []byte) (int, error) {
	w.logger.Debug(string(line))
	return len(line), nil
}
