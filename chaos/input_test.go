// SPDX-License-Identifier: Apache-2.0

package chaos_test

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"phalanx/node"
)

// TestSecondRunIsRefused: a directory belongs to one run, and the second one harms nothing.
func TestSecondRunIsRefused(t *testing.T) {
	t.Parallel()
	j := newJob(t, 2, 150, 20*time.Millisecond)
	first := j.run()
	j.until("two ranks train", both(whole(2), at(5)))
	j.run()
	j.refused(node.CodeLocked, j.dir)
	j.runs = []*process{first}
	j.until("training goes on", whole(2))
	j.finish()

	// Done is done: the same command tells the result again, another one would be answered with what it did not ask for.
	j.run()
	j.finish()
	j.cmd = append(j.cmd, "--steps", "151")
	j.run()
	j.refused(node.CodeUsage, "is done", "--steps 151")
}

// TestPoisonSample: a slot that kills whoever computes it ends the job, and is named with those that it killed.
func TestPoisonSample(t *testing.T) {
	t.Parallel()
	j := newJob(t, 4, 100, 10*time.Millisecond, "--fault-die-at", "30:5")
	j.flags = []string{"--save-every", "10"}
	j.run()
	j.refused(node.CodeFailed, "slot 5 of step 30", "killed h/")
	if out, code := j.verb("ckpt", "latest"); code != 0 {
		t.Errorf("what was trained before is lost: %d %s", code, out)
	}
}

// TestBadInput: each gives one clear error with the next command, and a code of its own.
func TestBadInput(t *testing.T) {
	t.Parallel()
	t.Run("store cannot be written", func(t *testing.T) {
		j := newJob(t, 2, 50, time.Millisecond)
		file := filepath.Join(filepath.Dir(j.dir), "file")
		if err := os.WriteFile(file, nil, 0o644); err != nil {
			t.Fatal(err)
		}
		j.run("--store", file+"/store")
		j.refused(node.CodeFailed, file, "--store")
	})
	t.Run("port in use", func(t *testing.T) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		j := newJob(t, 2, 50, time.Millisecond)
		j.run("--bind", l.Addr().String())
		j.refused(node.CodeFailed, l.Addr().String(), "in use")
	})
	t.Run("exit 0 before the last step", func(t *testing.T) {
		j := newJob(t, 2, 60, time.Millisecond, "--fault-exit0-at", "20")
		j.run()
		j.refused(node.CodeFailed, "exited 0 before the last step")
	})
	t.Run("crash at every start", func(t *testing.T) {
		j := newJob(t, 2, 50, time.Millisecond, "--fault-crash-at-start")
		j.run("--max-restarts", "2")
		j.refused(node.CodeFailed, "--max-restarts 2", "exited with status 1")
	})
	t.Run("batch that the slots do not divide", func(t *testing.T) {
		j := newJob(t, 2, 50, time.Millisecond, "--slots", "12", "--global-batch", "32")
		j.run("--max-restarts", "1")
		j.refused(node.CodeFailed, "12")
	})
	t.Run("crash of one member at every start", func(t *testing.T) {
		j := newJob(t, 3, 60, 20*time.Millisecond)
		name := filepath.Join(filepath.Dir(j.dir), "trainer")
		script := "#!/bin/sh\nif [ \"$LOCAL_RANK\" = 1 ]; then echo no GPU here; exit 3; fi\nexec " + strings.Join(j.cmd, " ") + "\n"
		if err := os.WriteFile(name, []byte(script), 0o755); err != nil {
			t.Fatal(err)
		}
		j.cmd = []string{name}
		j.run("--max-restarts", "1")
		j.until("the others train", func(s *node.Status) bool { return len(s.World) == 2 && s.Step > 5 })
		j.finish()
	})
}

// TestCorruptCheckpoint: damaged bytes are never trained on.
func TestCorruptCheckpoint(t *testing.T) {
	t.Parallel()
	j := newJob(t, 2, 120, 10*time.Millisecond)
	j.flags = []string{"--save-every", "20"}
	p := j.run()
	j.until("two checkpoints are published", func(s *node.Status) bool { return s.Published != nil && s.Published.Step >= 40 })
	p.signal(syscall.SIGTERM)
	if p = j.end(); p.code != 75 {
		t.Fatalf("the run ended with %d\n%s", p.code, tail(p.errs(), 15))
	}
	out, _ := j.verb("ckpt", "latest")
	_, folder, ok := strings.Cut(strings.TrimSpace(out), "folder=")
	names, _ := filepath.Glob(filepath.Join(j.dir, "store", folder, "*.distcp"))
	if !ok || len(names) == 0 {
		t.Fatalf("no objects in %q: %s", folder, out)
	}
	b, err := os.ReadFile(names[0])
	if err != nil {
		t.Fatal(err)
	}
	b[len(b)/2] ^= 1
	if err := os.Chmod(names[0], 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(names[0], b, 0o644); err != nil {
		t.Fatal(err)
	}
	if out, code := j.verb("ckpt", "verify"); code != node.CodeIntegrity || !strings.Contains(out, filepath.Base(names[0])) {
		t.Errorf("verify: %d %s", code, out)
	}
	j.reboot()
	j.forget()
	j.history.allowed = "the newest checkpoint was damaged"
	p = j.run()
	j.end()
	switch {
	case p.code == 0: // an older checkpoint was taken
		j.finish()
	case p.code == node.CodeIntegrity:
		j.refused(node.CodeIntegrity, filepath.Base(names[0]))
	default:
		t.Errorf("the run ended with %d, want 0 or %d\n%s", p.code, node.CodeIntegrity, tail(p.errs(), 15))
	}
}
