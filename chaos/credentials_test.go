// SPDX-License-Identifier: Apache-2.0

package chaos_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"phalanx/ckpt/s3/s3test"
	"phalanx/node"
)

// keyed is a job whose credentials are a key in a file, as tools write it that renew session tokens.
type keyed struct {
	*job
	server *s3test.Server
	store  string
	file   string
}

func newKeyedJob(t *testing.T, steps int) *keyed {
	server := s3test.NewServer(t, false)
	k := &keyed{job: newSmallJob(t, steps), server: server, store: server.StoreURL("run"), file: filepath.Join(t.TempDir(), "credentials")}
	k.renew("ASIA1")
	k.env = append(k.env, "AWS_SHARED_CREDENTIALS_FILE="+k.file)
	k.flags = []string{"--job", "s3", "--store", k.store, "--save-every", "20"}
	return k
}

// newSmallJob makes a job of two ranks that costs little. A store that comes back is asked again within some seconds, so long it must last.
func newSmallJob(t *testing.T, steps int) *job {
	j := newJob(t, 2, steps, 25*time.Millisecond, "--slots", "4", "--global-batch", "4")
	j.train = append(j.train, "--slots", "4", "--global-batch", "4")
	return j
}

// renew makes a key that the server knows and writes it into the file, whole, as the next one.
func (k *keyed) renew(id string) {
	k.t.Helper()
	text := fmt.Sprintf("[default]\naws_access_key_id = %s\naws_secret_access_key = %s\naws_session_token = t\n", id, k.server.AddKey(id, "t"))
	err := os.WriteFile(k.file+".new", []byte(text), 0o600)
	if err == nil {
		err = os.Rename(k.file+".new", k.file)
	}
	if err != nil {
		k.t.Fatal(err)
	}
}

// inTheMiddle runs what breaks the store once, after the first object of the next save and before its last, and waits for that. It
// returns the folder of that save's attempt. What is in the store then is no checkpoint.
func (k *keyed) inTheMiddle(strike func()) string {
	k.t.Helper()
	struck := make(chan string, 1) // 1: it happens once
	done := false
	k.server.Hook(func(r s3test.Request) s3test.Fault {
		folder, _, found := strings.Cut(strings.TrimPrefix(r.Key, "run/s3/"), "/")
		if !done && r.Op == "PUT" && found && strings.HasPrefix(folder, "step-") {
			done = true
			strike()
			struck <- folder
		}
		return s3test.Fault{}
	})
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(pollTime) {
		select {
		case folder := <-struck:
			k.server.Hook(nil)
			return folder
		default:
			_, _ = k.look() // for the history
		}
	}
	k.t.Fatal("no save begins")
	return ""
}

// noted wants a note of status, or what it says of saves, with all of some words.
func noted(words ...string) func(*node.Status) bool {
	return func(s *node.Status) bool {
		return slices.ContainsFunc(s.Notes, func(note string) bool {
			return !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(note, w) })
		})
	}
}

// restores wants that everything that was published can be read whole, then kills everything, memory and all, and wants that the job
// goes on from the store and ends as an undisturbed one does.
func (k *keyed) restores(s *node.Status) {
	k.t.Helper()
	want := s.Published.Step
	k.killAll()
	k.reboot()
	k.forget()
	out, code := probeVerb(k.job, "ckpt", "verify", "--all", "--store", k.store, "--job", "s3")
	if code != 0 || strings.Count(out, "step=") < 2 {
		k.t.Errorf("verify of all that was published ends with %d\n%s", code, out)
	}
	k.run()
	if s = k.until("it trains again", whole(2)); s.Floor < want {
		k.t.Errorf("goes on from step %d, published was %d", s.Floor, want)
	}
	k.history.allowed = "everything was killed"
	k.finish()
}

// TestCredentialsEndInTheMiddleOfASave: the session token ends while a save is written. Training goes on, status says whose store
// refuses and why, and as soon as the file has the next token the same save goes on and is published.
func TestCredentialsEndInTheMiddleOfASave(t *testing.T) {
	t.Parallel()
	k := newKeyedJob(t, 480)
	k.run()
	k.until("a step is published", published(1))
	folder := k.inTheMiddle(func() { k.server.Expire("ASIA1") })
	before := k.until("status says that the token has ended", noted("the store has carried out nothing for", "ExpiredToken", "renew what is in profile default of "+k.file))
	if before.Saves.Under == nil || before.Saves.Failures != 0 {
		t.Errorf("the save is not waited for: %+v", before.Saves)
	}
	k.until("training goes on", at(before.Step+20))
	if _, found := k.server.Content("run/s3/" + folder + "/.metadata"); found {
		t.Fatalf("%s was finished with a token that has ended", folder)
	}
	k.renew("ASIA2")
	s := k.until("the save is published", published(uint64(before.Published.Step)+1))
	if !strings.HasSuffix(s.Published.Folder, folder) {
		t.Errorf("%s is published, and %s had waited", s.Published.Folder, folder)
	}
	s = k.until("a later step is published, and nothing is noted", func(n *node.Status) bool {
		return n.Published.Step > s.Published.Step && !noted("the store")(n)
	})
	k.restores(s)
}

// TestKeyIsRevokedInTheMiddleOfASave: a key that the store does not know any more is no matter of waiting, so the save fails at once and
// softly. The next one reads the new key and is published.
func TestKeyIsRevokedInTheMiddleOfASave(t *testing.T) {
	t.Parallel()
	k := newKeyedJob(t, 320)
	k.run()
	k.until("a step is published", published(1))
	folder := k.inTheMiddle(func() { k.server.Revoke("ASIA1") })
	s := k.until("saves fail", func(s *node.Status) bool { return s.Saves.Failures > 0 })
	if !strings.Contains(s.Saves.Trouble, "InvalidAccessKeyId") || !strings.Contains(s.Saves.Trouble, k.file) || !noted("the last", "saves failed", "InvalidAccessKeyId")(s) {
		t.Errorf("saves: %+v, notes %q", s.Saves, s.Notes)
	}
	before := s.Published.Step
	s = k.until("training goes on", at(s.Step+20))
	if s.Published.Step != before || strings.HasSuffix(s.Published.Folder, folder) {
		t.Errorf("published without a key: %+v", s.Published)
	}
	k.renew("ASIA2")
	s = k.until("saves go well again", func(n *node.Status) bool {
		return n.Published.Step > s.Published.Step && n.Saves.Failures == 0 && n.Saves.Trouble == ""
	})
	k.restores(s)
}

// TestClockGoesWrongInTheMiddleOfASave: the clocks of store and host part by more than signatures allow. The save fails softly, status
// says by how much the clock is wrong, and when it is right again saves are published.
func TestClockGoesWrongInTheMiddleOfASave(t *testing.T) {
	t.Parallel()
	k := newKeyedJob(t, 320)
	k.run()
	k.until("a step is published", published(1))
	folder := k.inTheMiddle(func() { k.server.SetClock(20 * time.Minute) })
	s := k.until("saves fail", func(s *node.Status) bool { return s.Saves.Failures > 0 })
	if !strings.Contains(s.Saves.Trouble, "RequestTimeTooSkewed") || !strings.Contains(s.Saves.Trouble, "set this machine's clock: the store's is 20m0s away") ||
		!noted("the last", "saves failed", "RequestTimeTooSkewed")(s) {
		t.Errorf("saves: %+v, notes %q", s.Saves, s.Notes)
	}
	before := s.Published.Step
	s = k.until("training goes on", at(s.Step+20))
	if s.Published.Step != before || strings.HasSuffix(s.Published.Folder, folder) {
		t.Errorf("published by a wrong clock: %+v", s.Published)
	}
	k.server.SetClock(0)
	s = k.until("saves go well again", func(n *node.Status) bool {
		return n.Published.Step > s.Published.Step && n.Saves.Failures == 0 && n.Saves.Trouble == ""
	})
	k.restores(s)
}

// TestKeysOfTheEnvironmentEndMidRun: what cannot be renewed is said at once, by every save, and harms nothing but them. Another start
// with new keys goes on from what is in host memory and publishes.
func TestKeysOfTheEnvironmentEndMidRun(t *testing.T) {
	t.Parallel()
	server := s3test.NewServer(t, false)
	var lapsed atomic.Bool
	k := &keyed{job: newSmallJob(t, 320), server: server, store: server.StoreURL("run")}
	keys := func(id string) []string {
		return []string{"AWS_ACCESS_KEY_ID=" + id, "AWS_SECRET_ACCESS_KEY=" + server.AddKey(id, "t"), "AWS_SESSION_TOKEN=t"}
	}
	k.env = keys("ASIA1")
	k.flags = []string{"--job", "s3", "--store", k.store, "--save-every", "20", "--save-failure", "halt-after=3"}
	k.run()
	k.until("a step is published", published(1))
	k.inTheMiddle(func() {
		server.Expire("ASIA1")
		lapsed.Store(true)
	})
	s := k.until("saves fail", func(s *node.Status) bool { return s.Saves.Failures > 0 })
	if !lapsed.Load() || !strings.Contains(s.Saves.Trouble, "ExpiredToken") || !strings.Contains(s.Saves.Trouble, "set new AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN") {
		t.Errorf("saves: %+v", s.Saves)
	}
	k.until("training goes on", at(s.Step+10))
	k.refused(7, "3 saves in a row have failed", "AWS_SESSION_TOKEN")
	k.env = keys("ASIA2")
	k.forget()
	k.run()
	k.history.allowed = "the job was started again"
	s = k.until("a later step is published with the new keys", func(n *node.Status) bool { return n.Published != nil && n.Published.Step > s.Published.Step })
	k.restores(s)
}
