// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"phalanx"
	"phalanx/client/wire"
	"phalanx/elastic"
)

// endless is a connection whose other end never stops saying the same.
type endless struct {
	said  []byte
	taken int64
}

func (e *endless) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = e.said[(int(e.taken)+i)%len(e.said)]
	}
	e.taken += int64(len(p))
	return len(p), nil
}

// TestVotesAreBounded: a peer that sends anything but votes is left after a few KiB, whatever it sends.
func TestVotesAreBounded(t *testing.T) {
	for _, said := range []string{`{"who":{"member":"` + strings.Repeat("x", 999), " ", "[", `{"a":`, "\x00"} {
		from := &endless{said: []byte(said)}
		votes := newVoteReader(from)
		if v, err := votes.next(); err == nil {
			t.Errorf("%.20q: %+v", said, v)
		}
		if from.taken > 2*maxVote {
			t.Errorf("%.20q: %d bytes were taken", said, from.taken)
		}
	}
}

// TestMessagesCostWhatCame: a length alone reserves nothing.
func TestMessagesCostWhatCame(t *testing.T) {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range 8 {
		if _, err := readMessage(bytes.NewReader(frame(maxMessage, "{}"))); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Fatal(err)
		}
	}
	runtime.ReadMemStats(&after)
	if n := after.TotalAlloc - before.TotalAlloc; n > 1<<20 {
		t.Errorf("eight lengths cost %d bytes", n)
	}
}

// FuzzVotes: every vote of a stream is read as it was sent, and no stream takes more than its bytes.
func FuzzVotes(f *testing.F) {
	vote := peerVote{incarnate("h", 1, 3), elastic.Vote{Generation: phalanx.Generation{Epoch: 1, Number: 2}, Step: 3, OK: true, Digest: phalanx.Digest{1, ^uint64(0)}}}
	b, err := json.Marshal(vote)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(append(append(b, '\n'), b...))
	f.Add([]byte(`{"who":{}}{"vote":{"step":-1}}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		votes := newVoteReader(bytes.NewReader(text))
		for n := 0; ; n++ {
			v, err := votes.next()
			if err != nil {
				if v != (peerVote{}) {
					t.Fatalf("%v with %+v", err, v)
				}
				return
			}
			if n > len(text) {
				t.Fatalf("%d votes in %d bytes", n, len(text))
			}
			b, err := json.Marshal(v)
			if err != nil {
				t.Fatal(err)
			}
			if again, err := newVoteReader(bytes.NewReader(b)).next(); err != nil || again != v {
				t.Fatalf("%+v is sent as %s, read as %+v, %v", v, b, again, err)
			}
		}
	})
}

// FuzzRestore: a snapshot of the log is taken whole, or refused and changes nothing; what was taken is given out again alike.
func FuzzRestore(f *testing.F) {
	b, err := newReplica().Snapshot()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add([]byte(`{"version":1,"feature_level":1,"phase":"halted","halt":{"kind":"poison","words":"x"}}`))
	f.Add([]byte(`{"version":1,"feature_level":1,"phase":"running"}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		r := newReplica()
		before := r.state.Load()
		if err := r.Restore(b); err != nil {
			if r.state.Load() != before {
				t.Fatal("a refused snapshot changes the state")
			}
			return
		}
		once, err := r.Snapshot()
		if err != nil {
			t.Fatal(err)
		}
		if err := r.Restore(once); err != nil {
			t.Fatalf("%s is not taken back: %v", once, err)
		}
		if twice, err := r.Snapshot(); err != nil || !bytes.Equal(once, twice) {
			t.Fatalf("%s becomes %s, %v", once, twice, err)
		}
	})
}

// FuzzRequest: the body of any request to a daemon is refused with words or read, and never costs more than its bound.
func FuzzRequest(f *testing.F) {
	b, err := json.Marshal(hello())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add([]byte(`{"member":"a/0","why":"x","want":3}`))
	f.Add([]byte(`{"state":[{"name":"w","dtype":"f64","shape":[4294967296,4294967296]}],"segment_bytes":9223372036854775807}`))
	f.Add([]byte(`{"segment_bytes":-1}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		r := httptest.NewRequest(http.MethodPost, "/v1/hello", bytes.NewReader(body))
		r = r.WithContext(context.WithValue(r.Context(), peerUID{}, os.Getuid()))
		w := httptest.NewRecorder()
		var h wire.Hello
		if !readBody(w, r, &h) {
			var refused wire.Error
			if json.Unmarshal(w.Body.Bytes(), &refused) != nil || refused.Message == "" || w.Code != http.StatusBadRequest {
				t.Fatalf("refused with %d %s", w.Code, w.Body)
			}
			return
		}
		// What a hello asks for is made, exactly, or refused and not made.
		layout, err := wire.LayoutSlab(h.State)
		if err != nil || layout.Total > 1<<20 || h.SegmentBytes > 1<<20 || len(h.State) > 100 {
			return // more than a test should reserve
		}
		mem := wire.NewHeapMemory()
		p := NewPaths("/job", "/shm").in(mem)
		l, err := newLife(p, 0, incarnate("h", 0, 1))
		if err != nil {
			t.Fatal(err)
		}
		defer unmap(t, l)
		if err := l.outfit(p, 0, &h); err != nil {
			return
		}
		if d := l.digestOffset(); d < h.SegmentBytes || d+int64(len(h.State))*digestSize > l.serveSlot(0) || l.fillSlot(wire.FillCount) != int64(len(l.segment.Bytes())) {
			t.Fatalf("%d bytes were asked for, digests are at %d, rings at %d to %d of %d", h.SegmentBytes, d, l.serveSlot(0), l.fillSlot(wire.FillCount), len(l.segment.Bytes()))
		}
	})
}

// FuzzAdopt: a daemon takes over a page that holds anything, or refuses it; what it reads there its machine can work with.
func FuzzAdopt(f *testing.F) {
	f.Add(0, []byte{1}, 0)
	for _, place := range wire.Places {
		f.Add(place.Offset, bytes.Repeat([]byte{0xff}, 40), ringBytes)
		f.Add(place.Offset, []byte{2}, 100)
	}
	f.Fuzz(func(t *testing.T, at int, damage []byte, segment int) {
		mem := wire.NewHeapMemory()
		p := NewPaths("/job", "/shm").in(mem)
		who := incarnate("h", 0, 1)
		l, err := newLife(p, 0, who)
		if err != nil {
			t.Fatal(err)
		}
		l.helloPID, l.helloStart = selfProcess()
		g := phalanx.Generation{Number: 1}
		l.page.WriteApplied(wire.Applied{Step: 3, Generation: g, Valid: true, TrainerStart: l.helloStart})
		l.page.WriteGradient(wire.Gradient{Step: 4, Generation: g, TrainerStart: l.helloStart})
		l.page.WriteVote(wire.Vote{Generation: g, Step: 3, OK: true})
		l.page.WriteSeat(wire.Seat{Generation: g, Action: wire.ActionRun, World: 1})
		l.page.Post(wire.Descriptor{Count: 3})
		if segment > 0 && segment <= 2*ringBytes {
			if l.segment, err = mem.CreateRegion(p.Shared(0, 1, "seg"), int64(segment)); err != nil {
				t.Fatal(err)
			}
			if l.board, err = mem.CreateRegion(p.Shared(0, 1, "board"), int64(segment)); err != nil {
				t.Fatal(err)
			}
		}
		l.identify(kernel{}, 0, false)
		if err := l.unmap(); err != nil {
			t.Fatal(err)
		}
		raw, err := mem.OpenRegion(p.Shared(0, 1, "page"), true)
		if err != nil {
			t.Fatal(err)
		}
		for i, c := range damage {
			if b := raw.Bytes(); at >= 0 && at+i < len(b) {
				b[at+i] ^= c
			}
		}
		if err := raw.Unmap(); err != nil {
			t.Fatal(err)
		}
		l, err = adoptLife(p, 0, who.Member, 0)
		if err != nil || l == nil {
			return
		}
		defer unmap(t, l)
		if err := l.openSlab(p, 0, layout()); err == nil && l.digestOffset() < 0 {
			t.Fatalf("digests at %d", l.digestOffset())
		}
		if l.segment != nil && (l.serveSlot(0) < 0 || l.fillSlot(wire.FillCount) > int64(len(l.segment.Bytes()))) {
			t.Fatalf("rings from %d to %d in %d bytes", l.serveSlot(0), l.fillSlot(wire.FillCount), len(l.segment.Bytes()))
		}
		if head := l.page.RingHead(); l.posted > head || head-l.posted > wire.DescriptorCount {
			t.Fatalf("%d of %d descriptors are posted", l.posted, head)
		}
		m := elastic.NewMachine(l.who, elastic.NewState(), l.promises())
		trainer := l.readTrainer()
		m.Adopt(trainer)
		m.Step(elastic.Seen{Trainer: trainer})
		m.Step(elastic.SealAsked{Generation: g})
		l.slabLabels()
	})
}

// FuzzFiles: what is in DIR is read or refused, and what was read is written and read back the same. A daemon never fails to
// start for a file that only helps it to find others.
func FuzzFiles(f *testing.F) {
	for _, v := range []any{
		DaemonFile{Incarnate: incarnate("h", 0, 1), PID: 5, Start: 6, Socket: "/s", Addr: "127.0.0.1:1"},
		[]Peer{{Incarnate: incarnate("h", 1, 2), Addr: "127.0.0.1:2", Server: "s"}},
		phalanx.Incarnation(7),
		Outcome{Code: 75, Reason: "x", Done: true, Digest: phalanx.Digest{1, 2}},
		newPlainRecord(incarnate("h", 0, 1), phalanx.Generation{Epoch: 1, Number: 2}),
		plainExit{Token: "x", Code: 3},
		WarmState{Want: 1, Processes: []WarmProcess{{PID: 3, Start: 4, Ready: true}}, Taken: []WarmProcess{{PID: 5, Member: "h/0", Token: "no such token"}}},
		warmExit{137},
	} {
		b, err := json.Marshal(v)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Add([]byte(`[{"member":"x","addr":""},{}]`))
	f.Fuzz(func(t *testing.T, b []byte) {
		dir := t.TempDir()
		p := NewPaths(dir, dir)
		if err := errors.Join(os.MkdirAll(p.Member(0), 0o700), os.MkdirAll(p.Warm(), 0o700)); err != nil {
			t.Fatal(err)
		}
		for _, path := range []string{filepath.Join(dir, "roster.json"), filepath.Join(p.Warm(), "state.json"), p.warmExit(1, 2), p.DaemonFile(0), p.Outcome(0), p.Member(0) + "/incarnation.json", plainPath(p, 0), exitPath(p, 0)} {
			if err := os.WriteFile(path, b, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		r := newRoster(p, nil, func() Peer { return Peer{} })
		all := r.all()
		for _, peer := range all {
			if peer.Member == "" || peer.Addr == "" {
				t.Fatalf("a peer without name or address is known: %+v", peer)
			}
		}
		if err := r.save(); err != nil {
			t.Fatal(err)
		}
		if again := newRoster(p, nil, func() Peer { return Peer{} }).all(); len(again) != len(all) {
			t.Fatalf("%d peers, then %d", len(all), len(again))
		}
		r.addrs(1)
		same(t, p.DaemonFile(0), new(DaemonFile))
		same(t, p.Outcome(0), new(Outcome))
		same(t, filepath.Join(p.Warm(), "state.json"), new(WarmState))
		same(t, p.warmExit(1, 2), new(warmExit))
		if found := findWarm(p, "no such token"); len(found) > 0 && !bytes.Contains(b, []byte("no such token")) {
			t.Fatal("a process of another start is found")
		}
		same(t, p.Member(0)+"/incarnation.json", new(phalanx.Incarnation))
		if rec, ok := readPlainRecord(p, 0, incarnate("h", 0, 1)); ok && (rec.Token == "" || rec.Member != "h/0") {
			t.Fatalf("taken: %+v", rec)
		}
		if _, ok := readPlainExit(p, 0, "no such token"); ok && !bytes.Contains(b, []byte("no such token")) {
			t.Fatal("an exit of another start is taken")
		}
	})
}

// same reads a file, writes what it holds, and reads that again.
func same[V any](t *testing.T, path string, v *V) {
	t.Helper()
	if readJSON(path, v) != nil {
		return
	}
	var again V
	if err := errors.Join(writeJSON(path, v), readJSON(path, &again)); err != nil {
		t.Fatal(err)
	}
	a, _ := json.Marshal(v)
	if b, err := json.Marshal(again); err != nil || !bytes.Equal(a, b) {
		t.Fatalf("%s holds %s, then %s, %v", path, a, b, err)
	}
}

// FuzzJobKey: a key is 64 hex digits and reads back as it prints; a file that others may read is never taken.
func FuzzJobKey(f *testing.F) {
	f.Add(NewJobKey().String()+"\n", uint32(0o600))
	f.Add("  "+strings.Repeat("AB", 32), uint32(0o644))
	f.Add(strings.Repeat("0", 63), uint32(0o400))
	f.Fuzz(func(t *testing.T, s string, mode uint32) {
		k, err := ParseJobKey(s)
		if err == nil {
			if again, err := ParseJobKey(k.String()); err != nil || again != k || !strings.EqualFold(k.String(), strings.TrimSpace(s)) {
				t.Fatalf("%q is %s, then %s, %v", s, k, again, err)
			}
		}
		path := filepath.Join(t.TempDir(), "key")
		if err := errors.Join(os.WriteFile(path, []byte(s), 0o600), os.Chmod(path, fs.FileMode(mode)&0o777)); err != nil {
			t.Fatal(err)
		}
		got, readErr := ReadJobKey(path)
		if open := mode&0o077 != 0; (readErr == nil) != (err == nil && !open && (mode&0o400 != 0 || os.Getuid() == 0)) || readErr == nil && got != k {
			t.Fatalf("%q in a file of mode %o is %s, %v", s, mode&0o777, got, readErr)
		}
	})
}

// FuzzNames: names of files in shared memory and of logs name the life that they were made for and no other.
func FuzzNames(f *testing.F) {
	f.Add("phalanx.x.0.12.page", "h", 0, uint64(12))
	f.Add("h.0.1.log.1", "h", 0, uint64(1))
	f.Add("h.0.01.log", "h.0", 1, uint64(0))
	f.Fuzz(func(t *testing.T, name, host string, index int, n uint64) {
		id := phalanx.NewMemberID(host, index)
		if life, ok := logLife(name, id); ok {
			made := filepath.Base(NewPaths("/d", "/s").TrainerLog(phalanx.Incarnate{Member: id, Incarnation: life}))
			if id.Valid() && name != made && name != made+".1" {
				t.Fatalf("%q is taken for %q", name, made)
			}
		}
		if who := (phalanx.Incarnate{Member: id, Incarnation: phalanx.Incarnation(n >> 1)}); id.Valid() && who.Incarnation > 0 {
			made := filepath.Base(NewPaths("/d", "/s").TrainerLog(who))
			if life, ok := logLife(made, id); !ok || life != who.Incarnation {
				t.Fatalf("%q is of life %d, %v", made, life, ok)
			}
		}
		mem := wire.NewHeapMemory()
		p := NewPaths("/job", "/shm").in(mem)
		if index < 0 || n == 0 || strings.ContainsAny(name, "/\x00") {
			return
		}
		if r, err := mem.CreateRegion("/shm/phalanx."+p.place+"."+name, 8); err == nil {
			defer func() { _ = r.Unmap() }()
		}
		page, err := mem.CreatePage(p.Shared(index, phalanx.Incarnation(n), "page"), 0, 1)
		if err != nil {
			return // the other file has this very name
		}
		defer func() { _ = page.Unmap() }()
		lives := p.Lives(index)
		found := false
		for i, life := range lives {
			found = found || uint64(life) == n
			if i > 0 && lives[i-1] > life {
				t.Fatalf("lives %v", lives)
			}
		}
		if !found {
			t.Fatalf("life %d is not among %v", n, lives)
		}
	})
}
