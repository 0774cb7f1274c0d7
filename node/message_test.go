// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"reflect"
	"strings"
	"testing"

	"phalanx"
	"phalanx/ckpt"
	"phalanx/elastic"
)

func messages() []*Message {
	g := phalanx.Generation{Epoch: 2, Number: 7}
	who := incarnate("h", 1, 3)
	return []*Message{
		{},
		{Hello: &StreamHello{Job: "j", ProtocolMin: 1, ProtocolMax: 1, Peer: Peer{Incarnate: who, Addr: "127.0.0.1:1", Server: "s"}, From: 9}},
		{Report: &Report{Incarnate: who, Generation: g, Local: "running", Evidence: []phalanx.Evidence{{Kind: phalanx.Hung, About: who, Step: 4}},
			Siblings: []Sibling{{Incarnate: who, Daemon: true}}, Digest: phalanx.Digest{1, ^uint64(0)}}},
		{Answer: &elastic.Answer{Generation: g}},
		{Lease: &LeaseAsk{SentNS: 1 << 62}},
		{Shard: &ShardWritten{Attempt: ckpt.Attempt{Job: "j", Step: 5, Generation: g, Term: 2, Counter: 1}, Missed: true}},
		{Ask: &Request{ID: 1, Drain: "h/1", Why: "x"}},
		{Welcome: &StreamWelcome{Leading: true, Term: 4, State: elastic.NewState()}},
		{Snapshot: &Snapshot{Seq: 3, State: elastic.NewState()}, Entries: []Entry{{Seq: 4, Command: json.RawMessage(`{"kind":"done"}`)}}},
		{Seal: &SealAsk{Generation: g, Boundary: 12}},
		{Grant: &LeaseGrant{SentNS: 5, DurationNS: 6}},
		{Roster: []Peer{{Incarnate: who, Addr: "127.0.0.1:2"}}},
		{Reply: &Reply{ID: 1, Error: "no"}},
	}
}

func frame(n uint32, body string) []byte {
	return append(binary.LittleEndian.AppendUint32(nil, n), body...)
}

func TestMessagesComeBackAsTheyWereSent(t *testing.T) {
	var b bytes.Buffer
	for _, m := range messages() {
		if err := writeMessage(&b, m); err != nil {
			t.Fatal(err)
		}
	}
	for _, want := range messages() {
		got, err := readMessage(&b)
		if err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("sent %+v, received %+v", want, got)
		}
	}
	if _, err := readMessage(&b); !errors.Is(err, io.EOF) {
		t.Errorf("after the last: %v", err)
	}
}

func TestReadMessageRefusesFrames(t *testing.T) {
	for name, c := range map[string]struct {
		frame []byte
		want  string
	}{
		"too large":       {frame(maxMessage+1, ""), "are more than"},
		"the largest":     {frame(^uint32(0), ""), "are more than"},
		"cut in its head": {[]byte{1, 0}, "unexpected EOF"},
		"cut":             {frame(10, "{}"), "unexpected EOF"},
		"empty":           {frame(0, ""), "decode message"},
		"no JSON":         {frame(3, "abc"), "decode message"},
		"another type":    {frame(11, `{"hello":1}`), "decode message"},
	} {
		if m, err := readMessage(bytes.NewReader(c.frame)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %+v, %v", name, m, err)
		}
	}
}

func TestWriteMessageNamesABrokenStream(t *testing.T) {
	r, w := io.Pipe()
	_ = r.CloseWithError(io.ErrClosedPipe)
	if err := writeMessage(w, &Message{}); !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("%v", err)
	}
}

// FuzzReadMessage: whatever comes, nothing breaks, and what is read can be sent again and means the same.
func FuzzReadMessage(f *testing.F) {
	for _, m := range messages() {
		var b bytes.Buffer
		if err := writeMessage(&b, m); err != nil {
			f.Fatal(err)
		}
		f.Add(b.Bytes())
	}
	f.Add(frame(5, "{}"))
	f.Fuzz(func(t *testing.T, text []byte) {
		m, err := readMessage(bytes.NewReader(text))
		if err != nil {
			return
		}
		var b bytes.Buffer
		if err := writeMessage(&b, m); err != nil {
			t.Fatalf("what was read cannot be sent: %v", err)
		}
		first := bytes.Clone(b.Bytes())
		again, err := readMessage(&b)
		if err != nil {
			t.Fatalf("what was sent cannot be read: %v", err)
		}
		if err := writeMessage(&b, again); err != nil || !bytes.Equal(first, b.Bytes()) {
			t.Fatalf("sent %q, then %q, %v", first, b.Bytes(), err)
		}
	})
}
