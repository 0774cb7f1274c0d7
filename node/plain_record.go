// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"phalanx"
	"phalanx/membership"
)

// plainRecord is DIR/members/I/plain.json: the newest trainer of a member without the step protocol. It is written before
// the start, so that no generation's trainer is started twice, and again with what became of it.
type plainRecord struct {
	phalanx.Incarnate
	Generation phalanx.Generation `json:"generation"`
	Boot       string             `json:"boot"`
	Token      string             `json:"token"` // in the trainer's environment as PHALANX_START
	PID        int                `json:"pid,omitempty"`
	Start      uint64             `json:"start,omitempty"`
	Port       int                `json:"port,omitempty"`  // of the generation's store on the loopback interface
	Exit       *int               `json:"exit,omitempty"`  // status; -1: nobody knows
	Asked      bool               `json:"asked,omitempty"` // it was asked to end
}

// how says how the trainer of a record ended.
func (r *plainRecord) how() string {
	switch {
	case r.Exit == nil:
		return "its daemon ended while it started the trainer"
	case r.Asked:
		return "it was asked to end"
	case *r.Exit < 0:
		return "its process has ended and nobody knows how"
	}
	return fmt.Sprintf("exited with status %d", *r.Exit)
}

// plainExit is DIR/members/I/plain-exit.json: how a trainer ended whose daemon was dead. Run writes it.
type plainExit struct {
	Token string `json:"token"`
	Code  int    `json:"code"`
}

// plainOffer is DIR/members/I/plain-rendezvous.json: the address that this member gave the world of a generation.
type plainOffer struct {
	Generation phalanx.Generation `json:"generation"`
	Addr       string             `json:"addr"`
}

func plainPath(p Paths, index int) string { return filepath.Join(p.Member(index), "plain.json") }
func exitPath(p Paths, index int) string  { return filepath.Join(p.Member(index), "plain-exit.json") }
func offerPath(p Paths, index int) string {
	return filepath.Join(p.Member(index), "plain-rendezvous.json")
}

func newPlainRecord(who phalanx.Incarnate, g phalanx.Generation) plainRecord {
	b := make([]byte, 16)
	_, _ = rand.Read(b) // never fails
	return plainRecord{Incarnate: who, Generation: g, Boot: membership.BootID(), Token: hex.EncodeToString(b)}
}

func (r *plainRecord) save(p Paths, index int) error { return writeJSON(plainPath(p, index), r) }

// readPlainRecord returns the record of this life in this boot, if there is one.
func readPlainRecord(p Paths, index int, who phalanx.Incarnate) (r plainRecord, ok bool) {
	if readJSON(plainPath(p, index), &r) != nil {
		return r, false
	}
	return r, r.Incarnate == who && r.Boot == membership.BootID() && r.Token != ""
}

func readPlainExit(p Paths, index int, token string) (code int, ok bool) {
	var e plainExit
	if readJSON(exitPath(p, index), &e) != nil || e.Token != token {
		return 0, false
	}
	return e.Code, true
}

// NotePlainExit keeps the exit status of a child of run for the daemon that takes its trainer over. A trainer comes to run
// when its daemon was killed; without the step protocol its status is the only word on how it ended. Other children are
// ignored.
func NotePlainExit(dir string, members, pid, code int) {
	p := NewPaths(dir, "")
	for index := range members {
		var r plainRecord
		if readJSON(plainPath(p, index), &r) != nil || r.PID != pid || r.Exit != nil || r.Boot != membership.BootID() {
			continue
		}
		_ = writeJSON(exitPath(p, index), plainExit{r.Token, code}) // without it the trainer counts as failed
	}
}

// findByToken finds the processes that were started with a token in their environment.
func findByToken(token string) []*trainerProcess { return findByVariable("PHALANX_START=" + token) }

// findByVariable finds the processes in whose environment a variable has a value.
func findByVariable(setting string) []*trainerProcess {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	var out []*trainerProcess
	want := []byte(setting + "\x00")
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		env, err := os.ReadFile(filepath.Join("/proc", e.Name(), "environ"))
		if err != nil || !bytes.Contains(env, want) {
			continue
		}
		if start, err := membership.StartTime(pid); err == nil {
			out = append(out, &trainerProcess{system: kernel{}, pid: pid, start: start})
		}
	}
	return out
}
