// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// progress is one line on a terminal's stderr that says how far a long verb is. On anything else it is silent.
type progress struct {
	w     io.Writer // nil: silent
	what  string
	begin time.Time

	mu    sync.Mutex // guards what follows; held while a line is written
	last  time.Time
	shown bool
}

// progressEvery is how often the line changes.
const progressEvery = 200 * time.Millisecond

func (a *app) progress(what string) *progress {
	p := &progress{what: what, begin: time.Now()}
	if f, ok := a.stderr.(*os.File); ok && isTerminal(f) && a.variable("TERM") != "dumb" {
		p.w = a.stderr
	}
	return p
}

func isTerminal(f *os.File) bool {
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS) //nolint:gosec // a descriptor is small
	return err == nil
}

// update is called as often as one likes.
func (p *progress) update(done, total int64) {
	if p.w == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	if now.Sub(p.last) < progressEvery {
		return
	}
	p.last, p.shown = now, true
	fmt.Fprintf(p.w, "\r\x1b[K%s", progressLine(p.what, done, total, now.Sub(p.begin)))
}

// end removes the line.
func (p *progress) end() {
	if p.w == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.shown {
		fmt.Fprint(p.w, "\r\x1b[K")
	}
}

// progressLine says how far, how fast, and how long it will take at that rate.
func progressLine(what string, done, total int64, took time.Duration) string {
	line := fmt.Sprintf("%s %s of %s", what, humanBytes(done), humanBytes(total))
	if total > 0 {
		line += fmt.Sprintf(" (%d%%)", done*100/total)
	}
	if took < time.Second/2 || done == 0 {
		return line
	}
	rate := float64(done) / took.Seconds()
	left := time.Duration(float64(total-done) / rate * float64(time.Second)).Round(time.Second)
	return line + fmt.Sprintf(", %s/s, %s left", humanBytes(int64(rate)), left)
}

// humanBytes is a size for people.
func humanBytes(n int64) string {
	const unit = 1024
	if n < unit {
		return fmt.Sprintf("%d B", n)
	}
	value, suffix := float64(n), ""
	for _, suffix = range []string{"KiB", "MiB", "GiB", "TiB", "PiB"} {
		if value /= unit; value < unit {
			break
		}
	}
	return fmt.Sprintf("%.1f %s", value, suffix)
}
