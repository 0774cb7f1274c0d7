// SPDX-License-Identifier: Apache-2.0

package chaos_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"phalanx/node"
)

// TestWarmStart: a new job begins with the tensors of another one's checkpoint, in other groups, or of a file under other names. It is
// the same training however it is cut and whoever falls. A job that has a checkpoint goes on from that.
func TestWarmStart(t *testing.T) {
	const steps = 60
	from := filepath.Join(undisturbed(t, 30), "shards")
	stores := t.TempDir()
	begin := func(name string, nproc, groupSize int, floor time.Duration, more ...string) *job {
		j := newShards(t, filepath.Join(stores, name), nproc, groupSize, steps, floor)
		j.run(append([]string{"--host", name}, more...)...)
		return j
	}
	begin("whole", 1, 1, 0, "--warm-start", from).well()

	j := begin("cut", 4, 2, 30*time.Millisecond, "--warm-start", from)
	j.host = "cut"
	s := j.until("two groups train", both(whole(4), at(5)))
	lost := find(t, s, s.World[1])
	j.strike(s, []node.MemberStatus{lost}, nil)
	j.until("the rank is replaced", both(whole(4), replaced(lost), at(s.Step+5)))
	j.well()
	same(t, filepath.Join(stores, "whole"), filepath.Join(stores, "cut"))
	if out, err := exec.Command(program("phalanx"), "ckpt", "diff", filepath.Join(stores, "whole", "shards"), filepath.Join(undisturbed(t, steps), "shards")).CombinedOutput(); err == nil {
		t.Errorf("it began with what the seed makes:\n%s", out)
	}

	file := filepath.Join(stores, "weights.safetensors")
	if out, err := exec.Command(program("phalanx"), "ckpt", "convert", from, file, "--rename", "rows=net.rows", "--rename", "large=net.large").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	j = begin("file", 3, 3, 0, "--warm-start", file, "--rename", "net.=")
	j.well()
	if !strings.Contains(j.newest().errs(), "format safetensors") {
		t.Errorf("nothing is said of the file\n%s", tail(j.newest().errs(), 5))
	}
	same(t, filepath.Join(stores, "whole"), filepath.Join(stores, "file"))

	// The same job in another directory goes on, and says so.
	j = newShards(t, filepath.Join(stores, "whole"), 1, 1, steps+10, 0)
	j.run("--host", "again", "--warm-start", from)
	j.well()
	if !strings.Contains(j.newest().errs(), "goes on from its checkpoint of step 60") {
		t.Errorf("nothing is said of the checkpoint\n%s", tail(j.newest().errs(), 5))
	}
}

// TestWarmStartStops: what does not fit ends the job before its first step, with what differs in both directions, and nothing is saved.
func TestWarmStartStops(t *testing.T) {
	t.Parallel()
	from := filepath.Join(undisturbed(t, 30), "shards")
	junk := filepath.Join(t.TempDir(), "junk.bin")
	if err := os.WriteFile(junk, []byte("no checkpoint at all"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		flags, train []string
		code         int
		words        []string
	}{
		"nothing there":       {[]string{"--warm-start", junk + ".missing"}, nil, 3, []string{"junk.bin.missing"}},
		"no checkpoint":       {[]string{"--warm-start", junk}, nil, 8, []string{"junk.bin"}},
		"rules of nothing":    {[]string{"--partial"}, nil, 2, []string{"rules of --warm-start"}},
		"a rename that is no": {[]string{"--warm-start", from, "--rename", "rows"}, nil, 2, []string{"FROM=TO"}},
		"two of one name":     {[]string{"--warm-start", from, "--rename", "rows=large"}, nil, 2, []string{"would both be"}},
		"and a step":          {[]string{"--warm-start", from, "--resume", "30"}, nil, 2, []string{"begins anew, or goes on"}},
		"plain":               {[]string{"--warm-start", from, "--plain"}, nil, 2, []string{"--plain"}},
		"other names":         {[]string{"--warm-start", from, "--rename", "rows=lines"}, nil, 8, []string{`missing in the checkpoint: ["rows"]`, `unexpected there: ["lines"]`}},
		"a tensor more":       {[]string{"--warm-start", from}, []string{"--extra"}, 8, []string{`missing in the checkpoint: ["extra" "momentum.extra"]`}},
		"another dtype":       {[]string{"--warm-start", from}, []string{"--f64"}, 8, []string{"columns: stored f32[5 10], wanted f64[5 10]"}},
		"cast":                {[]string{"--warm-start", from, "--cast"}, []string{"--f64"}, 0, nil},
		"partial":             {[]string{"--warm-start", from, "--partial", "--only", "rows", "--only", "bias"}, []string{"--extra"}, 0, nil},
		"partial, other type": {[]string{"--warm-start", from, "--partial"}, []string{"--f64"}, 8, []string{"wanted f64"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			store := filepath.Join(t.TempDir(), "store")
			j := newShards(t, store, 2, 2, 10, 0, c.train...)
			j.run(c.flags...)
			if c.code == 0 {
				j.well()
				return
			}
			j.refused(c.code, c.words...)
			if left, _ := os.ReadDir(filepath.Join(store, "shards")); len(left) > 0 {
				t.Errorf("something was saved: %v", left)
			}
		})
	}
}
