// SPDX-License-Identifier: Apache-2.0

package host

import (
	"bytes"
	"log/slog"
	"net"
	"testing"
	"time"

	"phalanx"
)

// stash is a sink that looks at what it is given and lets it go.
type stash struct {
	t      *testing.T
	frames int
}

func (s *stash) deliver(f *frame) {
	s.frames++
	if int(f.payload) != len(f.data()) || f.payload > maxPayload || f.group >= groups {
		s.t.Errorf("delivered %+v with %d bytes", f.header, len(f.data()))
	}
	f.free()
}

func (*stash) broken(error) {}

// FuzzLink: a link delivers whole frames of its generation, keeps few of a later one, and breaks at the first byte that is
// none, whatever comes.
func FuzzLink(f *testing.F) {
	gen := phalanx.Generation{Epoch: 1, Number: 7}
	var valid bytes.Buffer
	for _, h := range []header{
		{typ: framePost, gen: gen, source: 1, seq: 1, word: 9},
		{typ: frameData, gen: gen, source: 1, seq: 1, payload: 5},
		{typ: frameAck, gen: gen.Next(), source: 1, seq: 1, chunk: 1 << 60},
		{typ: frameFail, gen: phalanx.Generation{}, seq: 1},
	} {
		var head [headBytes]byte
		h.encode(head[:])
		valid.Write(head[:])
		valid.Write(make([]byte, h.payload))
	}
	f.Add(valid.Bytes(), 3)
	f.Add(bytes.Repeat(valid.Bytes()[:headBytes], 40), 0)
	f.Add(valid.Bytes()[:headBytes+20], 1)
	f.Fuzz(func(t *testing.T, text []byte, early int) {
		here, there := net.Pipe()
		l := NewLink(here, slog.New(slog.DiscardHandler))
		sink := &stash{t: t}
		early = min(max(early, 0), len(text))
		deadline := time.Now().Add(10 * time.Second)
		if err := there.SetWriteDeadline(deadline); err != nil {
			t.Fatal(err)
		}
		_, first := there.Write(text[:early])
		l.in.Lock()
		if n := len(l.in.early); n > maxEarly {
			t.Errorf("%d frames are kept", n)
		}
		l.in.Unlock()
		l.attach(gen, sink)
		_, second := there.Write(text[early:])
		if (first != nil || second != nil) && time.Now().After(deadline) {
			t.Error("the link reads no more and is not broken")
		}
		if err := there.Close(); err != nil {
			t.Fatal(err)
		}
		select {
		case <-l.Done():
		case <-time.After(10 * time.Second):
			t.Fatal("the link lives on without its connection")
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		// What the link delivered is what lies in the bytes: a reader of the plain format must agree.
		want, rest := 0, text
		for len(rest) >= headBytes {
			h, err := parseHeader(rest)
			if err != nil || len(rest) < headBytes+int(h.payload) {
				break
			}
			late := len(text)-len(rest)+headBytes+int(h.payload) > early
			if h.gen == gen && late {
				want++
			}
			rest = rest[headBytes+int(h.payload):]
		}
		if sink.frames > want+maxEarly {
			t.Errorf("%d frames were delivered, %d were sent", sink.frames, want)
		}
	})
}
