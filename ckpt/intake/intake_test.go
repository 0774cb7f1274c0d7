// SPDX-License-Identifier: Apache-2.0

package intake

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"phalanx"
	"phalanx/ckpt"
	"phalanx/ckpt/dcp"
	"phalanx/ckpt/mem"
)

// share puts bytes into memory of this process and gives its name.
func share(t testing.TB, content []byte) string {
	t.Helper()
	fd, err := unix.MemfdCreate("test", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), "memory")
	t.Cleanup(func() { _ = f.Close() })
	if _, err := f.Write(content); err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), fd)
}

// client asks a service.
type client struct {
	t   testing.TB
	mux *http.ServeMux
}

func serve(t testing.TB, s *Service) client {
	t.Helper()
	c := client{t, http.NewServeMux()}
	s.Register(c.mux)
	t.Cleanup(s.Close)
	return c
}

// raw gives status and body.
func (c client) raw(verb string, body any) (int, []byte) {
	c.t.Helper()
	b, err := json.Marshal(body)
	if err != nil {
		c.t.Fatal(err)
	}
	w := httptest.NewRecorder()
	c.mux.ServeHTTP(w, httptest.NewRequest(http.MethodPost, Path+verb, bytes.NewReader(b)))
	return w.Code, w.Body.Bytes()
}

// ask decodes an answer; kind is that of a failure.
func (c client) ask(verb string, body, into any) (kind, words string) {
	c.t.Helper()
	code, b := c.raw(verb, body)
	if code != http.StatusOK {
		var f Failure
		if err := json.Unmarshal(b, &f); err != nil || f.Kind == "" || f.Error == "" {
			c.t.Fatalf("%s: %d %s", verb, code, b)
		}
		return f.Kind, f.Error
	}
	if into != nil {
		if err := json.Unmarshal(b, into); err != nil {
			c.t.Fatalf("%s: %s: %v", verb, b, err)
		}
	}
	return "", ""
}

type object map[string]any

func count(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i * 7)
	}
	return b
}

// saved writes a tensor of 6 by 4, in two boxes of two ranks, one as a record of torch.save, and a value.
func (c client) saved(step int) begun {
	c.t.Helper()
	var a begun
	if kind, words := c.ask("begin", object{"step": step}, &a); kind != "" {
		c.t.Fatal(words)
	}
	content := count(96)
	value := []byte("a pickle of something")
	memory := append(slices.Clone(content[:64]), value...)
	if kind, words := c.ask("write", object{"job": a.Job, "attempt": a.Attempt, "writer": 0, "memory": share(c.t, memory), "boxes": []object{
		{"file": "f0", "at": 0, "length": 64, "dtype": "f32", "shape": []int{4, 4}, "offset": 0},
		{"file": "f0", "at": 1, "length": len(value), "dtype": "u8", "shape": []int{len(value)}, "value": true, "offset": 64},
	}}, nil); kind != "" {
		c.t.Fatal(words)
	}
	head, err := dcp.RecordHeader("f32", []int{2, 4}, 32, 0)
	if err != nil {
		c.t.Fatal(err)
	}
	record := slices.Concat([]byte("before"), head, content[64:], dcp.RecordTrailer("f32", []int{2, 4}, 32, 0))
	length := len(record) - 6
	if kind, words := c.ask("write", object{"job": a.Job, "attempt": a.Attempt, "writer": 1, "memory": share(c.t, record), "records": []object{
		{"file": "__1_0.distcp", "at": 40, "length": length, "offset": 6},
	}}, nil); kind != "" {
		c.t.Fatal(words)
	}
	m := dcp.Metadata{
		Tensors: []dcp.Tensor{{Name: "w", DType: "f32", Shape: []int{6, 4}, Chunks: []dcp.Chunk{
			{Offset: []int{0, 0}, Size: []int{4, 4}, File: "f0", Length: 64}, {Offset: []int{4, 0}, Size: []int{2, 4}, File: "__1_0.distcp", At: 40, Length: int64(length)}}}},
		Objects: []dcp.Object{{Name: "v", File: "f0", At: 1, Length: int64(len(value))}},
		Paths:   map[string][]any{"w": {"model", "w"}},
	}
	index, err := m.Encode()
	if err != nil {
		c.t.Fatal(err)
	}
	var p published
	if kind, words := c.ask("publish", object{"job": a.Job, "attempt": a.Attempt, "branch": a.Branch, "index": index}, &p); kind != "" {
		c.t.Fatal(words)
	}
	if p.Step != phalanx.Step(step) || p.Bytes != int64(96+len(value)) {
		c.t.Errorf("%+v", p)
	}
	return a
}

// frames takes an answer to read apart.
func frames(t *testing.T, b []byte) (data [][]byte, failure *Failure) {
	t.Helper()
	for {
		if len(b) < 9 {
			t.Fatalf("%d bytes are left of an answer without an end", len(b))
		}
		n := binary.LittleEndian.Uint64(b[1:])
		p := b[9:][:n]
		switch b[0] {
		case frameData:
			data = append(data, p)
		case frameError:
			failure = new(Failure)
			if err := json.Unmarshal(p, failure); err != nil {
				t.Fatal(err)
			}
			return data, failure
		case frameEnd:
			return data, nil
		}
		b = b[9+n:]
	}
}

func TestService(t *testing.T) {
	s := mem.New()
	c := serve(t, &Service{Store: s, Job: "job"})
	a := c.saved(7)
	var o opened
	if kind, words := c.ask("open", object{}, &o); kind != "" || o.Attempt != a.Attempt || o.Step != 7 {
		t.Fatalf("%s %+v", words, o)
	}
	if len(o.Tensors) != 1 || len(o.Tensors[0].Chunks) != 2 || len(o.Values) != 1 || o.Values[0].Name != "v" || fmt.Sprint(o.Tensors[0].Path) != "[model w]" {
		t.Errorf("%+v", o)
	}
	// A box over the seam of the two ranks.
	_, b := c.raw("read", object{"attempt": a.Attempt, "boxes": []object{{"name": "w", "offset": []int{3, 1}, "shape": []int{2, 2}}}, "values": []string{"v"}})
	data, failure := frames(t, b)
	all := count(96)
	if want := slices.Concat(all[52:60], all[68:76]); failure != nil || len(data) != 2 || !bytes.Equal(data[0], want) || string(data[1]) != "a pickle of something" {
		t.Errorf("%v %+v", data, failure)
	}
	for _, f := range o.Files {
		var got []byte
		for at := int64(0); at < f.Size; {
			code, b := c.raw("file", object{"attempt": a.Attempt, "name": f.Name, "at": at})
			if code != http.StatusOK || len(b) == 0 {
				t.Fatalf("%s at %d: %d %s", f.Name, at, code, b)
			}
			got, at = append(got, b...), at+int64(len(b))
		}
		if want, err := s.Get(t.Context(), "job/"+a.Attempt+"/"+f.Name, 0, -1); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s: %d bytes, %v", f.Name, len(got), err)
		}
	}
	var l listed
	if kind, words := c.ask("list", object{}, &l); kind != "" || len(l.Checkpoints) != 1 {
		t.Errorf("%s %+v", words, l)
	}
	// A flipped bit is named, in each way of reading.
	key := "job/" + a.Attempt + "/__0_0.distcp"
	content, err := s.Get(t.Context(), key, 0, -1)
	if err != nil {
		t.Fatal(err)
	}
	content = bytes.Clone(content)
	content[1024+13] ^= 4
	if err := s.Put(t.Context(), key, ckpt.Bytes(content)); err != nil {
		t.Fatal(err)
	}
	_, b = c.raw("read", object{"attempt": a.Attempt, "boxes": []object{{"name": "w", "offset": []int{0, 0}, "shape": []int{6, 4}}}})
	if _, failure := frames(t, b); failure == nil || failure.Kind != "damaged" || !strings.Contains(failure.Error, `"w"`) || !strings.Contains(failure.Error, "__0_0.distcp") {
		t.Errorf("%+v", failure)
	}
	if kind, words := c.ask("file", object{"attempt": a.Attempt, "name": "__0_0.distcp", "at": 0}, nil); kind != "damaged" || !strings.Contains(words, `"w"`) {
		t.Errorf("%s: %s", kind, words)
	}
}

// TestRefuses: what cannot be meant is refused in words.
func TestRefuses(t *testing.T) {
	c := serve(t, &Service{Store: mem.New(), Job: "job-dcp", Own: "job"})
	a := c.saved(7)
	memory := share(t, count(100))
	write := func(change object) object {
		q := object{"job": a.Job, "attempt": "step-8-g1-a1.0", "memory": memory, "boxes": []object{{"file": "f", "dtype": "u8", "shape": []int{4}, "offset": 0, "length": 4}}}
		for k, v := range change {
			q[k] = v
		}
		return q
	}
	for name, x := range map[string]struct {
		verb string
		body object
		kind string
		says string
	}{
		"the job's own":         {"begin", object{"job": "job", "step": 8}, "usage", "which it resumes from"},
		"a bad job":             {"begin", object{"job": "a/b", "step": 8}, "usage", "one key element"},
		"a published step":      {"begin", object{"step": 7}, "fenced", "step 7 of this branch is published"},
		"no attempt":            {"write", write(object{"attempt": "x"}), "usage", "want step-STEP"},
		"a file as memory":      {"write", write(object{"memory": "/etc/passwd"}), "usage", "/proc/PID/fd/N"},
		"a pipe as memory":      {"write", write(object{"memory": fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), pipe(t))}), "usage", "is no memory"},
		"no memory":             {"write", write(object{"memory": fmt.Sprintf("/proc/%d/fd/99999", os.Getpid())}), "usage", "of one user"},
		"beyond the memory":     {"write", write(object{"boxes": []object{{"file": "f", "dtype": "u8", "shape": []int{4}, "offset": 97}}}), "usage", "of 100 that are shared"},
		"a foreign dtype":       {"write", write(object{"boxes": []object{{"file": "f", "dtype": "q8", "shape": []int{4}}}}), "usage", "a box of q8"},
		"a record beyond":       {"write", write(object{"records": []object{{"file": "f", "length": 101}}}), "usage", "that are shared"},
		"no boxes":              {"write", write(object{"boxes": []object{}}), "other", "0 boxes in one batch"},
		"an index that is none": {"publish", object{"attempt": "step-8-g1-a1.0", "index": []byte("x")}, "format", ".metadata"},
		"nothing written":       {"publish", object{"attempt": "step-8-g1-a1.0", "index": indexOf(t)}, "incomplete", "where nobody wrote"},
		"too late":              {"abort", object{"attempt": a.Attempt}, "other", "is published"},
		"no such step":          {"open", object{"which": "step-9"}, "not_found", "was not published"},
		"no such word":          {"open", object{"which": "newest"}, "usage", "want latest"},
		"an empty job":          {"open", object{"job": "other"}, "not_found", ""},
		"no such file":          {"file", object{"attempt": a.Attempt, "name": "x"}, "not_found", "no object"},
		"beyond the file":       {"file", object{"attempt": a.Attempt, "name": "__0_0.distcp", "at": 1 << 40}, "not_found", "which has"},
	} {
		if kind, words := c.ask(x.verb, x.body, nil); kind != x.kind || !strings.Contains(words, x.says) {
			t.Errorf("%s: %s: %s", name, kind, words)
		}
	}
	for name, q := range map[string]object{
		"no such tensor":  {"attempt": a.Attempt, "boxes": []object{{"name": "x", "offset": []int{}, "shape": []int{}}}},
		"no such value":   {"attempt": a.Attempt, "values": []string{"w"}},
		"beyond a tensor": {"attempt": a.Attempt, "boxes": []object{{"name": "w", "offset": []int{5, 0}, "shape": []int{2, 4}}}},
	} {
		_, b := c.raw("read", q)
		if data, failure := frames(t, b); failure == nil || len(data) > 0 {
			t.Errorf("%s: %v", name, data)
		}
	}
	private := serve(t, &Service{Store: mem.New(), Job: "job", Allowed: func(*http.Request) bool { return false }})
	if kind, words := private.ask("list", object{}, nil); kind != "usage" || !strings.Contains(words, "another user") {
		t.Errorf("%s: %s", kind, words)
	}
}

func indexOf(t *testing.T) []byte {
	t.Helper()
	m := dcp.Metadata{Objects: []dcp.Object{{Name: "v", File: "f", Length: 3}}}
	b, err := m.Encode()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func pipe(t *testing.T) int {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = r.Close(), w.Close() })
	return int(r.Fd())
}

// TestRetention: the policy counts what programs publish.
func TestRetention(t *testing.T) {
	s := mem.New()
	service := &Service{Store: s, Job: "job", Retain: &ckpt.Policy{KeepLast: 2}, By: "test"}
	c := serve(t, service)
	for step := 1; step <= 5; step++ {
		c.saved(step)
		service.prunings.Wait()
	}
	records, _, err := ckpt.List(t.Context(), s, "job")
	if err != nil {
		t.Fatal(err)
	}
	var kept []phalanx.Step
	for _, r := range records {
		if r.Commit != nil {
			kept = append(kept, r.Commit.Step)
		}
	}
	if !slices.Equal(kept, []phalanx.Step{4, 5}) {
		t.Errorf("kept %v", kept)
	}
	left, err := ckpt.ListAll(t.Context(), s, "job/step-1-")
	if err != nil || len(left) > 0 { // no grace
		t.Errorf("%v are left, %v", left, err)
	}
}

// FuzzRequest: whatever is asked is answered, and nothing is published by it.
func FuzzRequest(f *testing.F) {
	f.Add("begin", []byte(`{"step":9}`))
	f.Add("write", []byte(`{"attempt":"step-9-g1-a1.0","memory":"/proc/1/fd/1","boxes":[{"file":"f","dtype":"f32","shape":[2],"offset":4}]}`))
	f.Add("publish", []byte(`{"attempt":"step-9-g1-a1.0","index":"gAR9Lg=="}`))
	f.Add("read", []byte(`{"attempt":"step-7-g1-a1.0","boxes":[{"name":"w","offset":[0,0],"shape":[1,1]}],"values":["v"]}`))
	f.Add("file", []byte(`{"attempt":"step-7-g1-a1.0","name":".metadata","at":-1}`))
	f.Add("open", []byte(`{"which":"step-7"}`))
	f.Add("abort", []byte(`{"attempt":"step-7-g1-a1.0"}`))
	f.Fuzz(func(t *testing.T, verb string, body []byte) {
		s := mem.New()
		c := serve(t, &Service{Store: s, Job: "job"})
		r := httptest.NewRequest(http.MethodPost, "/", bytes.NewReader(body))
		r.URL.Path = Path + strings.Trim(verb, "/.")
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		c.mux.ServeHTTP(httptest.NewRecorder(), r.WithContext(ctx))
		if all, err := ckpt.ListAll(t.Context(), s, ""); err != nil || slices.ContainsFunc(all, func(i ckpt.Info) bool { return strings.Contains(i.Key, "/commits/") }) {
			t.Errorf("%v, %v", all, err)
		}
	})
}
