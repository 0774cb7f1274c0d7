// SPDX-License-Identifier: Apache-2.0

package chaos_test

import (
	"math/rand/v2"
	"os/exec"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"phalanx/ckpt/s3/s3test"
	"phalanx/node"
)

// probeVerb calls phalanx store probe, which knows no job.
func probeVerb(j *job, args ...string) (string, int) {
	c := exec.CommandContext(j.ctx, program("phalanx"), args...)
	c.Env = append(c.Environ(), j.env...)
	out, err := c.CombinedOutput()
	if c.ProcessState == nil {
		j.t.Fatal(err)
	}
	return string(out), c.ProcessState.ExitCode()
}

// inBucket lets a job save into a server of this test.
func inBucket(t *testing.T, j *job, server *s3test.Server, more ...string) string {
	store := server.StoreURL("run", more...)
	for name, value := range server.Env(t) {
		j.env = append(j.env, name+"="+value)
	}
	j.flags = []string{"--job", "s3", "--store", store, "--save-every", "40"}
	return store
}

// published wants a checkpoint of at least a step.
func published(step uint64) func(*node.Status) bool {
	return func(s *node.Status) bool { return s.Published != nil && uint64(s.Published.Step) >= step }
}

// TestP7StoreFails: the store refuses, loses acknowledgements, drops connections and asks to slow down, and is away for a while.
// Training goes on, saves are published, and all of them can be restored.
func TestP7StoreFails(t *testing.T) {
	t.Parallel()
	server := s3test.NewServer(t, false)
	j := newJob(t, 2, 400, 20*time.Millisecond)
	store := inBucket(t, j, server)
	var away atomic.Bool
	random := rand.New(rand.NewPCG(1, 2))
	faults := []s3test.Fault{
		{Status: 503, Code: "SlowDown"}, {Status: 500, Code: "InternalError", After: true}, {Drop: true}, {Drop: true, After: true},
		{Status: 409, Code: "ConditionalRequestConflict"}, {Damage: true}, {Cut: 10}, {Delay: 200 * time.Millisecond},
	}
	j.run()
	j.until("two ranks train", both(whole(2), at(5)))
	server.Hook(func(s3test.Request) s3test.Fault {
		switch {
		case away.Load():
			return s3test.Fault{Status: 503, Code: "SlowDown"}
		case random.IntN(4) == 0:
			return faults[random.IntN(len(faults))]
		}
		return s3test.Fault{}
	})
	s := j.until("a checkpoint is published", func(s *node.Status) bool { return s.Published != nil && s.Published.Step >= 40 })
	away.Store(true)
	s = j.until("training goes on without the store, beyond the next save", at(s.Published.Step+80))
	away.Store(false)
	before := s.Published.Step
	j.until("a checkpoint is published again", func(s *node.Status) bool { return s.Published.Step > before })
	j.finish()
	server.Hook(nil)
	c := exec.CommandContext(j.ctx, program("phalanx"), "ckpt", "verify", "--store", store, "--job", "s3")
	c.Env = append(c.Environ(), j.env...)
	if out, err := c.CombinedOutput(); err != nil || !strings.Contains(string(out), "step=400") {
		t.Errorf("verify: %v\n%s", err, out)
	}
}

// TestStoreThatIsWrong: what is wrong with a bucket is said at the start, within seconds, and nothing is begun.
func TestStoreThatIsWrong(t *testing.T) {
	t.Parallel()
	server := s3test.NewServer(t, false)
	for _, c := range []struct {
		name        string
		from, to    string // of the URL
		environment string
		code        int
		words       string
	}{
		{"bucket", "s3://bucket", "s3://nobucket", "", node.CodeNotFound, "create bucket nobucket"},
		{"region", s3test.Region, "moon-1", "", node.CodeUsage, "region=" + s3test.Region},
		{"parameter", "region=", "regoin=", "", node.CodeUsage, "did you mean region?"},
		{"secret", "", "", "AWS_SECRET_ACCESS_KEY=wrong", node.CodeAuth, "SignatureDoesNotMatch"},
	} {
		t.Run(c.name, func(t *testing.T) {
			j := newJob(t, 1, 50, 0)
			store := inBucket(t, j, server)
			j.flags[3] = strings.Replace(store, c.from, c.to, 1)
			if c.environment != "" {
				j.env = append(j.env, c.environment)
			}
			begun := time.Now()
			j.run()
			j.refused(c.code, c.words)
			if took := time.Since(begun); took > 20*time.Second {
				t.Errorf("it took %s", took)
			}
		})
	}
}

// TestStoreWithoutConditions: a bucket that ignores conditions is used, and probe says what is lost.
func TestStoreWithoutConditions(t *testing.T) {
	t.Parallel()
	server := s3test.NewServer(t, false)
	server.Flaws.IgnoreConditions = true
	j := newJob(t, 2, 60, 0)
	store := inBucket(t, j, server)
	j.run()
	j.finish()
	out, code := probeVerb(j, "store", "probe", store)
	if code != 0 || !strings.Contains(out, "conditional create    NO") || !strings.Contains(out, "without conditional create: two leaders") {
		t.Errorf("probe ends with %d\n%s", code, out)
	}
}

// TestStopWhileTheStoreIsAway: a stop does not wait for a store that does not answer longer than the grace, and says so. What was
// in memory is gone on with when it is back.
func TestStopWhileTheStoreIsAway(t *testing.T) {
	t.Parallel()
	server := s3test.NewServer(t, false)
	j := newJob(t, 2, 300, 20*time.Millisecond)
	inBucket(t, j, server)
	j.flags = append(j.flags, "--grace", "3s")
	p := j.run()
	s := j.until("a checkpoint is published", func(s *node.Status) bool { return s.Published != nil })
	server.Hook(func(s3test.Request) s3test.Fault { return s3test.Fault{Drop: true} })
	s = j.until("training goes on", at(s.Step+10))
	p.signal(syscall.SIGTERM)
	begun := time.Now()
	if p = j.end(); p.code != node.CodeFailed || time.Since(begun) > 30*time.Second {
		t.Errorf("the run ended with %d after %s, want 1 soon after the grace\n%s", p.code, time.Since(begun), tail(p.errs(), 12))
	}
	server.Hook(nil)
	j.forget()
	j.run()
	s2 := j.until("it trains again", whole(2))
	if s2.Floor < s.Published.Step {
		t.Errorf("goes on from step %d, published was %d", s2.Floor, s.Published.Step)
	}
	j.history.allowed = "stopped and started"
	j.finish()
}
