// SPDX-License-Identifier: Apache-2.0

package host

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"sync"
	"time"

	"phalanx"
)

// linkWrite bounds one write. A healthy peer always reads, so only a stopped or unreachable one makes a write last.
const linkWrite = 2 * time.Minute

// maxEarly bounds the frames kept for a generation that this end has not formed yet: a peer can post one operation and
// give one up in each group before it hears from us, and offer as many messages as its ring has places.
const maxEarly = 4*(groups+MaxGroups) + maxQueued

// Link is a connection to the daemon of a member on another host. It outlives generations: Form attaches it, and frames of
// other generations are dropped. It starts a reader and a writer, which end with Close or when the connection breaks.
// Only copies of segments pass through it, so a blocked write never keeps an operation in a segment.
type Link struct {
	conn net.Conn
	log  *slog.Logger

	in struct {
		sync.Mutex
		gen   phalanx.Generation
		to    sink // nil while no generation is attached
		early []*frame
		err   error // why the link is broken
	}
	out struct {
		sync.Mutex
		frames []*frame // bounded by the credits that receivers give
		closed bool
	}
	wake chan struct{} // 1: only "there is something" matters
	ends sync.WaitGroup
	stop chan struct{}
	once sync.Once
}

// sink takes what arrives for the attached generation. Neither method may block.
type sink interface {
	deliver(*frame)
	broken(error)
}

// NewLink takes the connection over. The conn must be private to the link, with frames at both ends from its first byte.
func NewLink(conn net.Conn, log *slog.Logger) *Link {
	l := &Link{conn: conn, log: log, wake: make(chan struct{}, 1), stop: make(chan struct{})}
	l.ends.Go(l.read)
	l.ends.Go(l.write)
	return l
}

// Close breaks the connection and waits for the reader and the writer.
func (l *Link) Close() error {
	l.fail(net.ErrClosed)
	l.ends.Wait()
	return nil
}

// Err returns why the link is broken, nil while it works. A broken link stays so: make a new one for the next generation.
func (l *Link) Err() error {
	l.in.Lock()
	defer l.in.Unlock()
	return l.in.err
}

// Done is closed when the link breaks or is closed.
func (l *Link) Done() <-chan struct{} { return l.stop }

func (l *Link) fail(err error) {
	l.once.Do(func() {
		l.in.Lock()
		l.in.err = err
		to := l.in.to
		dropAll(&l.in.early)
		l.in.Unlock()
		l.out.Lock()
		l.out.closed = true
		dropAll(&l.out.frames)
		l.out.Unlock()
		close(l.stop)
		// Closing also ends a read or write that is in progress, which is all that it is for; its own error says nothing more.
		_ = l.conn.Close()
		if to != nil {
			to.broken(err)
		}
		if !errors.Is(err, net.ErrClosed) {
			l.log.Info("collective link broken", "error", err)
		}
	})
}

func dropAll(frames *[]*frame) {
	for _, f := range *frames {
		f.free()
	}
	*frames = nil
}

// attach directs frames of a generation to a sink, those that came early first.
func (l *Link) attach(gen phalanx.Generation, to sink) {
	l.in.Lock()
	l.in.gen, l.in.to = gen, to
	early := l.in.early
	l.in.early = nil
	for _, f := range early {
		switch c := f.gen.Compare(gen); {
		case c == 0:
			to.deliver(f)
		case c > 0:
			l.in.early = append(l.in.early, f)
		default:
			f.free()
		}
	}
	err := l.in.err
	l.in.Unlock()
	if err != nil {
		to.broken(err)
	}
}

// detach ends the delivery of a generation and takes back what was not written yet.
func (l *Link) detach(gen phalanx.Generation) {
	l.in.Lock()
	if l.in.gen == gen {
		l.in.to = nil
	}
	l.in.Unlock()
	l.out.Lock()
	defer l.out.Unlock()
	kept := l.out.frames[:0]
	for _, f := range l.out.frames {
		if gen.Less(f.gen) {
			kept = append(kept, f)
		} else {
			f.free()
		}
	}
	clear(l.out.frames[len(kept):])
	l.out.frames = kept
}

// send queues a frame; it never blocks. On a broken link the frame is dropped: the sink has been told.
func (l *Link) send(f *frame) {
	l.out.Lock()
	if l.out.closed {
		l.out.Unlock()
		f.free()
		return
	}
	l.out.frames = append(l.out.frames, f)
	l.out.Unlock()
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

func (l *Link) write() {
	var head [headBytes]byte
	for {
		l.out.Lock()
		var f *frame
		if len(l.out.frames) > 0 {
			f = l.out.frames[0]
			l.out.frames[0] = nil
			l.out.frames = l.out.frames[1:]
		}
		l.out.Unlock()
		if f == nil {
			select {
			case <-l.wake:
				continue
			case <-l.stop:
				return
			}
		}
		b := head[:]
		if f.buf != nil {
			b = f.buf[:headBytes+f.payload]
		}
		f.encode(b)
		err := l.conn.SetWriteDeadline(time.Now().Add(linkWrite))
		if err == nil {
			_, err = l.conn.Write(b)
		}
		f.free()
		if err != nil {
			l.fail(fmt.Errorf("write to %s: %w", l.conn.RemoteAddr(), err))
			return
		}
	}
}

// read has no deadline of its own: between steps a link is silent for as long as a step takes. Close ends it, and the
// deadline of the operation that waits for a frame.
func (l *Link) read() {
	var head [headBytes]byte
	for {
		if _, err := io.ReadFull(l.conn, head[:]); err != nil {
			l.fail(fmt.Errorf("read from %s: %w", l.conn.RemoteAddr(), err))
			return
		}
		h, err := parseHeader(head[:])
		if err != nil {
			l.fail(fmt.Errorf("read from %s: %w", l.conn.RemoteAddr(), err))
			return
		}
		f := &frame{header: h}
		if h.payload > 0 {
			f = newData(h, int(h.payload))
			if _, err := io.ReadFull(l.conn, f.data()); err != nil {
				f.free()
				l.fail(fmt.Errorf("read from %s: %w", l.conn.RemoteAddr(), err))
				return
			}
		}
		l.dispatch(f)
	}
}

// dispatch delivers, keeps or drops a frame by its generation.
func (l *Link) dispatch(f *frame) {
	l.in.Lock()
	defer l.in.Unlock()
	switch c := f.gen.Compare(l.in.gen); {
	case l.in.err != nil, c < 0:
	case c == 0 && l.in.to != nil:
		l.in.to.deliver(f)
		return
	case c > 0 && f.payload == 0 && len(l.in.early) < maxEarly:
		l.in.early = append(l.in.early, f)
		return
	case c > 0 && f.payload == 0:
		// Several generations passed without us: only the newest can still be formed.
		l.in.early = append(l.in.early[1:], f)
		return
	}
	f.free()
}
