// SPDX-License-Identifier: Apache-2.0

package node

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"phalanx"
	"phalanx/client/wire"
)

// Paths names the files of one host's part of a job.
type Paths struct {
	Dir    string
	shm    string
	place  string // names this directory's files in shared memory
	memory wire.Memory
	system System
}

// NewPaths names the files below dir. dir must be absolute.
func NewPaths(dir, shm string) Paths {
	if shm == "" {
		shm = "/dev/shm"
	}
	if real, err := filepath.EvalSymlinks(dir); err == nil {
		dir = real
	}
	sum := sha256.Sum256([]byte(dir))
	return Paths{dir, shm, hex.EncodeToString(sum[:6]), wire.SharedMemory{}, kernel{}}
}

// in returns the paths with another memory than the host's, nil for that.
func (p Paths) in(m wire.Memory) Paths {
	if m != nil {
		p.memory = m
	}
	return p
}

// on returns the paths with another operating system than this process's, nil for that.
func (p Paths) on(s System) Paths {
	if s != nil {
		p.system = s
	}
	return p
}

// Member is the directory of the member with a local index.
func (p Paths) Member(index int) string { return filepath.Join(p.Dir, "members", strconv.Itoa(index)) }

// Outcome is where a daemon leaves how it ended.
func (p Paths) Outcome(index int) string { return filepath.Join(p.Member(index), "outcome.json") }

// DaemonFile is where a living daemon says how to reach it.
func (p Paths) DaemonFile(index int) string { return filepath.Join(p.Member(index), "daemon.json") }

// Socket is the member's unix socket. Its length is bounded by the kernel, so deep directories use a short one.
func (p Paths) Socket(index int) string {
	s := filepath.Join(p.Member(index), "sock")
	if len(s) < 100 {
		return s
	}
	return filepath.Join(os.TempDir(), fmt.Sprintf("phalanx.%s.%d.sock", p.place, index))
}

// TrainerLog is the output of one life of a member's trainer.
func (p Paths) TrainerLog(i phalanx.Incarnate) string {
	return filepath.Join(p.Dir, "log", fmt.Sprintf("%s.%d.log", i.Member.FileName(), i.Incarnation))
}

// DaemonLog is the output of the daemons of a member.
func (p Paths) DaemonLog(id phalanx.MemberID) string {
	return filepath.Join(p.Dir, "log", "daemon."+id.FileName()+".log")
}

// Bells is the bells file of this host's members.
func (p Paths) Bells() string { return filepath.Join(p.shm, "phalanx."+p.place+".bells") }

// Shared is a file in shared memory of one life of a member: kind is page, seg, board or one of slabKinds;
// of a plain trainer seg-GENERATION and board-GENERATION.
func (p Paths) Shared(index int, n phalanx.Incarnation, kind string) string {
	return filepath.Join(p.shm, fmt.Sprintf("phalanx.%s.%d.%d.%s", p.place, index, n, kind))
}

// Lives lists the incarnations of which a page exists for the member with a local index, ascending.
func (p Paths) Lives(index int) []phalanx.Incarnation { return p.AllLives()[index] }

// AllLives are the Lives of all members of the host, by local index.
func (p Paths) AllLives() map[int][]phalanx.Incarnation {
	out := map[int][]phalanx.Incarnation{}
	for _, name := range p.memory.List(p.prefix()) {
		parts := strings.Split(strings.TrimPrefix(name, p.prefix()), ".")
		if len(parts) != 3 || parts[2] != "page" {
			continue
		}
		index, err := strconv.Atoi(parts[0])
		if err != nil {
			continue
		}
		if n, err := strconv.ParseUint(parts[1], 10, 64); err == nil {
			out[index] = append(out[index], phalanx.Incarnation(n))
		}
	}
	for _, lives := range out {
		sortIncarnations(lives)
	}
	return out
}

// prefix is what the names of this host's files in shared memory begin with.
func (p Paths) prefix() string { return filepath.Join(p.shm, "phalanx."+p.place+".") }

// SharedVersion is another one after a file was added to the shared memory or taken away; 0 says nothing.
func (p Paths) SharedVersion() uint64 { return p.memory.Version(p.prefix()) }

// Remove unlinks every file in shared memory of one life. Files are never truncated: others may still map them.
func (p Paths) Remove(index int, n phalanx.Incarnation) {
	p.removePlain(index, n)
	for _, kind := range append([]string{"seg", "board", registered, "page"}, slabKinds...) {
		_ = p.memory.Remove(p.Shared(index, n, kind)) // gone already is as good
	}
}

// RemoveSegment unlinks what only the trainer of a life and those that reduced with it had a use for.
func (p Paths) RemoveSegment(index int, n phalanx.Incarnation) {
	for _, kind := range []string{"seg", "board"} {
		_ = p.memory.Remove(p.Shared(index, n, kind)) // gone already is as good
	}
}

// removePlain unlinks what the plain trainers of a life had for collectives.
func (p Paths) removePlain(index int, n phalanx.Incarnation) {
	for _, kind := range []string{plainSegment, plainBoard} {
		for _, name := range p.memory.List(p.Shared(index, n, kind)) {
			_ = p.memory.Remove(name) // gone already is as good
		}
	}
}
