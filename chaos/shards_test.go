// SPDX-License-Identifier: Apache-2.0

package chaos_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"phalanx/node"
)

// newShards is a job whose model is cut among groups of a size, that saves into a store.
func newShards(t *testing.T, store string, nproc, groupSize, steps int, floor time.Duration, more ...string) *job {
	t.Helper()
	j := newJob(t, nproc, steps, floor)
	j.cmd = append([]string{program("shards"), "--steps", strconv.Itoa(steps), "--group-size", strconv.Itoa(groupSize), "--step-floor", floor.String(),
		"--record", j.dir + ".steps"}, more...)
	j.flags = append(j.flags, "--store", store, "--job", "shards", "--save-every", "20")
	return j
}

// well waits for the end of a run, which must be a good one.
func (j *job) well() {
	j.t.Helper()
	if p := j.end(); p.code != 0 || !doneLine.MatchString(p.out()) {
		j.t.Fatalf("the run ended with %d\n%s", p.code, tail(p.out()+p.errs(), 15))
	}
}

// same fails unless the newest checkpoints in two stores have the same tensors.
func same(t *testing.T, a, b string, flags ...string) {
	t.Helper()
	args := append([]string{"ckpt", "diff", filepath.Join(a, "shards"), filepath.Join(b, "shards")}, flags...)
	if out, err := exec.Command(program("phalanx"), args...).CombinedOutput(); err != nil {
		t.Errorf("phalanx %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

// undisturbed trains the whole model in one process and gives the store that holds its end.
func undisturbed(t *testing.T, steps int, more ...string) string {
	t.Helper()
	store := filepath.Join(t.TempDir(), "alone")
	j := newShards(t, store, 1, 1, steps, 0, more...)
	j.run("--host", "alone")
	j.well()
	return store
}

var recorded = regexp.MustCompile(`(?m)^step=(\d+) member=(\S+) coordinate=(\d+) group=(\d+) digest=(\S+)$`)

// places reads where each member was, from the steps that it applied. One that was at two coordinates fails the test, and so do two
// that made different states of one step at one coordinate.
func (j *job) places() map[string]int {
	j.t.Helper()
	text, err := os.ReadFile(j.dir + ".steps")
	if err != nil {
		j.t.Fatal(err)
	}
	at, states := map[string]int{}, map[string]string{}
	for _, m := range recorded.FindAllStringSubmatch(string(text), -1) {
		c, _ := strconv.Atoi(m[3])
		if old, seen := at[m[2]]; seen && old != c {
			j.t.Errorf("%s was at coordinate %d and at %d", m[2], old, c)
		}
		at[m[2]] = c
		step := m[1] + " at " + m[3]
		if old, seen := states[step]; seen && old != m[5] {
			j.t.Errorf("step %s is %s and %s", step, old, m[5])
		}
		states[step] = m[5]
	}
	return at
}

// TestShardsHeal: the model is cut in two, two groups train it. A rank is lost: what is left of its group keeps its coordinate, and
// the next life of the one that died gets the same coordinate and heals from the rank with that coordinate in the other group. Then
// a daemon dies beside its trainer, and a whole host's worth of them at once.
func TestShardsHeal(t *testing.T) {
	const steps = 240
	want := undisturbed(t, steps)
	store := filepath.Join(t.TempDir(), "store")
	j := newShards(t, store, 4, 2, steps, 25*time.Millisecond)
	j.run()
	s := j.until("two groups train", both(whole(4), at(5)))
	if s.GroupSize != 2 {
		t.Fatalf("groups of %d", s.GroupSize)
	}
	for _, rank := range []int{1, 2} {
		lost := find(t, s, s.World[rank])
		j.strike(s, []node.MemberStatus{lost}, nil)
		s = j.until("the rank is replaced", both(whole(4), replaced(lost), at(s.Step+5)))
	}
	daemon := find(t, s, s.World[3])
	j.strike(s, nil, []node.MemberStatus{daemon})
	j.until("its daemon is back beside its trainer", both(whole(4), restarted(daemon), at(s.Step+5)))
	// Both ranks of one coordinate: nobody possesses it any more, and the slabs of the newest save do.
	s = j.until("a state is staged", func(s *node.Status) bool { return s.Saves.Levels.Local != nil && s.Saves.Levels.Local.Step >= 20 })
	a, b := find(t, s, s.World[0]), find(t, s, s.World[2])
	j.strike(s, []node.MemberStatus{a, b}, nil)
	j.until("both are replaced", both(whole(4), replaced(a), replaced(b), at(s.Floor+1)))
	j.well()
	sat := j.places()
	count := map[int]int{}
	for _, c := range sat {
		count[c]++
	}
	if len(sat) != 4 || count[0] != 2 || count[1] != 2 {
		t.Errorf("members were at %v, want two at each coordinate", sat)
	}
	if n := j.said("msg=heals", "source=live"); n < 2 {
		t.Errorf("%d heals from living members, want two", n)
	}
	// By then it may be published; what of it lies in slabs is read there all the same.
	if n := j.said("msg=heals", "source=slab") + j.said("msg=heals", "source=store"); n < 1 {
		t.Errorf("nobody has healed from what was saved")
	}
	same(t, want, store)
}

// TestShardsAreCutAnew: a checkpoint of a model in two parts is gone on from in one part, then in four, some of them empty, then in
// three.
func TestShardsAreCutAnew(t *testing.T) {
	t.Parallel()
	store := filepath.Join(t.TempDir(), "store")
	steps := 0
	for i, groupSize := range []int{2, 1, 4, 3} {
		steps += 30
		j := newShards(t, store, max(groupSize, 2), groupSize, steps, 0, "--per-rank")
		j.run("--host", fmt.Sprint("h", i))
		j.well()
		if i > 0 {
			if s := j.said("cuts a checkpoint anew"); s < groupSize {
				t.Errorf("groups of %d: %d ranks have cut the checkpoint anew", groupSize, s)
			}
		}
	}
	keys := []string{}
	for _, name := range []string{"rows", "columns", "bias", "scalar", "large", "momentum.*", "count"} {
		keys = append(keys, "--keys", name)
	}
	same(t, undisturbed(t, steps), store, keys...)
}

// TestRanksOwn: what each rank has of its own differs between those who hold the same coordinate, and is no reason not to heal: from
// two of them, from slabs, and from the store.
func TestRanksOwn(t *testing.T) {
	const steps = 120
	store := filepath.Join(t.TempDir(), "store")
	j := newShards(t, store, 3, 1, steps, 30*time.Millisecond, "--per-rank")
	j.run()
	s := j.until("three ranks train", both(whole(3), at(5)))
	lost := find(t, s, s.World[1])
	j.strike(s, []node.MemberStatus{lost}, nil)
	j.until("the rank is replaced", both(whole(3), replaced(lost), at(s.Step+5)))
	s = j.until("a state is published", both(whole(3), func(s *node.Status) bool { return s.Published != nil }))
	all := []node.MemberStatus{find(t, s, s.World[0]), find(t, s, s.World[1]), find(t, s, s.World[2])}
	j.strike(s, all, nil)
	j.until("all are replaced", both(whole(3), replaced(all[0]), replaced(all[1]), replaced(all[2]), at(s.Step+5)))
	j.well()
	if n := j.said("heal broken off"); n > 0 {
		t.Errorf("%d heals were broken off", n)
	}
	keys := []string{}
	for _, name := range []string{"rows", "columns", "bias", "scalar", "large", "momentum.*", "count"} {
		keys = append(keys, "--keys", name)
	}
	same(t, undisturbed(t, steps), store, keys...)
}
