// SPDX-License-Identifier: Apache-2.0

//go:build s3 || seaweedfs

package chaos_test

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"
)

// realServer is an object store that can be killed and started again.
type realServer interface {
	Kill()
	Start(ctx context.Context) error
}

// serverKilled: the object store is killed in the middle of a run, training goes on, and the next save after it is back is
// published. Then everything dies, and the run goes on from the store.
func serverKilled(t *testing.T, g realServer, env map[string]string, store string, steps int) {
	for name, value := range env {
		t.Setenv(name, value)
	}
	j := newJob(t, 2, steps, 20*time.Millisecond)
	j.flags = []string{"--job", "s3", "--store", store, "--save-every", "40"}
	j.run()
	s := j.until("a checkpoint is published", published(40))
	g.Kill()
	s = j.until("training goes on without the store, beyond the next save", at(s.Published.Step+80))
	lost := s.Published.Step
	if err := g.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	s = j.until("a checkpoint is published by the store that is back", published(uint64(lost)+1))
	j.killAll()
	j.reboot()
	j.forget()
	want := s.Published.Step
	j.run()
	s = j.until("it trains again", whole(2))
	if s.Floor < want {
		t.Errorf("goes on from step %d although step %d was published", s.Floor, want)
	}
	j.history.allowed = "everything was killed"
	j.finish()
	for _, args := range [][]string{{"ckpt", "verify"}, {"ckpt", "ls"}, {"ckpt", "inspect", strings.Replace(store, "team/run", "team/run/s3", 1)}, {"store", "probe", store}} {
		place := []string{"--store", store, "--job", "s3"}
		out, code := "", 0
		if args[0] == "store" {
			out, code = probeVerb(j, args...)
		} else {
			out, code = j.verb(append(args, place...)...)
		}
		if code != 0 || strings.Contains(out, os.Getenv("AWS_SECRET_ACCESS_KEY")) {
			t.Errorf("phalanx %v ends with %d\n%s", args, code, out)
		}
	}
}
