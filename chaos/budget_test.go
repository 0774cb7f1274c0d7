// SPDX-License-Identifier: Apache-2.0

package chaos_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"phalanx"
	"phalanx/ckpt/s3/s3test"
	"phalanx/node"
)

// buildLarge makes the trainer with a large state, without the race detector.
var buildLarge = sync.OnceValues(func() (string, error) {
	path := filepath.Join(bin, "large")
	cmd := exec.Command("go", "build", "-trimpath", "-o", path, "./internal/large")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOAMD64=v1")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the large trainer: %w\n%s", err, out)
	}
	return path, nil
})

// sighting is what daemons take and what the store has got at a moment.
type sighting struct {
	at      time.Time
	anon    map[phalanx.MemberID]int64 // RssAnon of the daemon
	shared  map[phalanx.MemberID]int64 // allocated in the member's shared memory, without slabs
	slabs   map[phalanx.MemberID]int64 // and in its slabs
	arrived int64                      // bytes of bodies
}

// see takes a look.
func see(j *job, s *node.Status, server *s3test.Server) sighting {
	m := sighting{time.Now(), map[phalanx.MemberID]int64{}, map[phalanx.MemberID]int64{}, map[phalanx.MemberID]int64{}, server.Arrived()}
	for _, x := range s.Members {
		for line := range strings.Lines(content(fmt.Sprintf("/proc/%d/status", x.DaemonPID))) {
			if text, ok := strings.CutPrefix(line, "RssAnon:"); ok {
				kib, _ := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(text), " kB"), 10, 64)
				m.anon[x.Member] = kib << 10
			}
		}
		one := node.NewPaths(j.dir, "").Shared(x.Member.Index(), 1, "page")
		names, _ := filepath.Glob(strings.TrimSuffix(one, "1.page") + "*")
		for _, name := range names {
			var st syscall.Stat_t
			if syscall.Stat(name, &st) != nil {
				continue // swept just now
			}
			into := m.shared
			if strings.Contains(filepath.Base(name), ".slab") { // also one that is being made
				into = m.slabs
			}
			into[x.Member] += st.Blocks * 512
		}
	}
	return m
}

// saidAt is the time of the newest line of some logs that contains words.
func saidAt(t *testing.T, pattern string, words ...string) time.Time {
	t.Helper()
	var newest time.Time
	names, _ := filepath.Glob(pattern)
	for _, name := range names {
		for line := range strings.Lines(content(name)) {
			all := true
			for _, w := range words {
				all = all && strings.Contains(line, w)
			}
			text, _, _ := strings.Cut(strings.TrimPrefix(line, "time="), " ")
			if at, err := time.Parse(time.RFC3339Nano, text); all && err == nil && at.After(newest) {
				newest = at
			}
		}
	}
	if newest.IsZero() {
		t.Fatalf("%s do not say %q", pattern, words)
	}
	return newest
}

// TestHealWhileASaveIsUploading: the store is slow, and a trainer dies in the middle of a save. Its next life heals from the other one while
// the save goes on being uploaded. Beside slabs no daemon takes more than a tenth of the state for both, its buffers and the shared memory
// that states pass through together, as --max-host-bytes wants. Nothing is lost, and the state is the one of an undisturbed run.
func TestHealWhileASaveIsUploading(t *testing.T) {
	const (
		mib, steps, every = 384, 1600, 200 // the upload of a save takes about 1,300 of the steps
		state             = int64(mib) << 20
		rate              = 12 << 20 // bytes a second of one upload
	)
	large, err := buildLarge()
	if err != nil {
		t.Fatal(err)
	}
	server := s3test.NewServer(t, false)
	server.Hook(func(r s3test.Request) s3test.Fault {
		if r.Op == "PUT" && strings.Contains(r.Key, "/step-") {
			return s3test.Fault{Rate: rate}
		}
		return s3test.Fault{}
	})
	j := newJob(t, 2, 0, 0)
	args := []string{"--mib", strconv.Itoa(mib), "--steps", strconv.Itoa(steps)}
	j.cmd = append([]string{large}, args...)
	store := inBucket(t, j, server)
	j.flags = []string{"--job", "s3", "--store", store, "--save-every", strconv.Itoa(every), "--max-host-bytes", fmt.Sprintf("%dMiB", 2*mib*107/100)} // three hundredths are left for what Go's heap holds beside what is counted
	j.run()
	s := j.until("two ranks train", both(whole(2), at(10)))
	quiet := see(j, s, server)
	victim := follower(t, s)
	for end := time.Now().Add(patience); server.Arrived() < 16<<20; time.Sleep(pollTime) {
		if time.Now().After(end) {
			t.Fatal("no save is uploaded")
		}
	}
	var seen []sighting
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			case <-time.After(5 * time.Millisecond):
				seen = append(seen, see(j, s, server))
			}
		}
	}()
	j.hit(victim.TrainerPID, "KILL")
	killErr := syscall.Kill(victim.TrainerPID, syscall.SIGKILL)
	after, err := j.wait("two ranks train again", both(whole(2), replaced(victim)))
	var saved *node.Status
	server.Hook(nil)
	if err == nil {
		saved, err = j.wait("the save is published", published(every))
	}
	close(stop)
	<-stopped
	if err != nil || killErr != nil {
		t.Fatal(err, killErr)
	}

	// The upload was under way before, while and after the trainer healed.
	from := saidAt(t, filepath.Join(j.dir, "log", fmt.Sprintf("daemon.%s.%d.log", j.host, victim.Member.Index())), "msg=heals")
	to := saidAt(t, filepath.Join(j.dir, "log", fmt.Sprintf("%s.%d.%d.log", j.host, victim.Member.Index(), victim.Incarnation+1)), "msg=healed")
	var arrived [2]int64
	for _, x := range seen {
		for i, at := range []time.Time{from, to} {
			if x.at.Before(at) {
				arrived[i] = x.arrived
			}
		}
	}
	t.Logf("it healed for %s, and meanwhile %.1f MiB of a save of %d arrived at the store", to.Sub(from), float64(arrived[1]-arrived[0])/(1<<20), mib)
	if to.Before(from) || after.Published != nil || arrived[0] == 0 || arrived[1]-arrived[0] < 1<<20 {
		t.Errorf("no save was being uploaded during the heal: published then %+v, later %+v", after.Published, saved.Published)
	}
	for _, m := range s.Members {
		var beside, slabs int64
		for _, x := range seen {
			beside, slabs = max(beside, x.anon[m.Member]-quiet.anon[m.Member]+x.shared[m.Member]), max(slabs, x.slabs[m.Member])
		}
		t.Logf("%s: its daemon had %.1f MiB before; beside slabs it took %.1f MiB more, shared memory included; slabs %.1f MiB",
			m.Member, float64(quiet.anon[m.Member])/(1<<20), float64(beside)/(1<<20), float64(slabs)/(1<<20))
		allowed := state + 1<<20 // one, with its header
		if m.Member == victim.Member {
			allowed += state // that of the life before, which is written and read from until the next one is staged
		}
		if beside > state/10 || slabs > allowed || slabs < state {
			t.Errorf("%s took %d bytes beside slabs of %d, with a state of %d", m.Member, beside, slabs, state)
		}
	}

	p := j.end()
	want, err := exec.Command(large, append([]string{"--alone"}, args...)...).Output()
	if m := doneLine.FindStringSubmatch(p.out()); err != nil || p.code != 0 || m == nil || !strings.HasSuffix(strings.TrimSpace(string(want)), "digest="+m[3]) {
		t.Errorf("the run ended with %d, undisturbed it is %q (%v)\n%s", p.code, want, err, tail(p.out()+p.errs(), 8))
	}
	j.check(t)
	if out, code := probeVerb(j, "ckpt", "verify", "--all", "--store", store, "--job", "s3"); code != 0 || !strings.Contains(out, "step="+strconv.Itoa(steps)) {
		t.Errorf("verify of all that was published ends with %d\n%s", code, out)
	}
}
