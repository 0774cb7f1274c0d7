// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"phalanx"
	"phalanx/cmd/phalanx/internal/settings"
	"phalanx/cmd/phalanx/internal/supervise"
	"phalanx/membership"
	"phalanx/node"
)

func itoa(n int) string { return strconv.Itoa(n) }

// fakeDaemon keeps run's side of the contract and trains nothing. Files in DIR tell it what to do:
//
//	crash        print a line and exit 3 at once
//	refuse       leave an outcome with code 10 at once
//	deaf         never answer a stop
//	finish       leave the outcome of a finished job
func fakeDaemon(args []string) {
	f := flag.NewFlagSet("daemon", flag.ExitOnError)
	dir, index := f.String("dir", "", ""), f.Int("index", 0, "")
	f.Int(supervise.WordsFlag, 0, "")
	_ = f.Parse(args) // exits
	must := func(err error) {
		if err != nil {
			fmt.Fprintln(os.Stderr, "fake daemon:", err)
			os.Exit(4)
		}
	}
	told := func(what string) bool {
		_, err := os.Stat(filepath.Join(*dir, what))
		return err == nil
	}
	s, err := settings.Read(*dir)
	must(err)
	paths := node.NewPaths(*dir, "")
	leave := func(o node.Outcome) {
		must(supervise.WriteFile(paths.Outcome(*index), o))
		os.Exit(o.Code)
	}
	if told("crash") {
		fmt.Fprintln(os.Stderr, "the fake disk is full")
		os.Exit(3)
	}
	if told("refuse") {
		leave(node.Outcome{Code: node.CodeAuth, Reason: "the fake key is refused", Hint: "phalanx key new"})
	}
	must(os.MkdirAll(paths.Member(*index), 0o700))
	trainer := fakeTrainerOf(*dir, paths, s, *index, must)

	stopped := make(chan struct{}, 16) // 16: run may ask more than once
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/status", func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(fakeStatus(s, *index, trainer))
	})
	mux.HandleFunc("POST /v1/stop", func(w http.ResponseWriter, _ *http.Request) {
		if told("deaf") {
			select {}
		}
		fmt.Fprint(w, `{"ok":true}`)
		stopped <- struct{}{}
	})
	mux.HandleFunc("POST /v1/drain", func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusServiceUnavailable)
		fmt.Fprint(w, `{"error":"no leader","hint":"wait for an election","code":"no_quorum"}`)
	})
	_ = os.Remove(paths.Socket(*index))
	l, err := net.Listen("unix", paths.Socket(*index))
	must(err)
	go func() { _ = http.Serve(l, mux) }() // ends with the process
	start, err := membership.StartTime(os.Getpid())
	must(err)
	must(supervise.WriteFile(paths.DaemonFile(*index), node.DaemonFile{
		Incarnate: phalanx.Incarnate{Member: s.Member(*index), Incarnation: 1}, PID: os.Getpid(), Start: start, Socket: paths.Socket(*index)}))
	for {
		select {
		case <-stopped:
			_ = syscall.Kill(-trainer, syscall.SIGKILL)
			leave(node.Outcome{Code: node.CodePreempted, Step: 7, Generation: phalanx.Generation{Number: 1}})
		case <-time.After(10 * time.Millisecond):
		}
		if told("finish") {
			_ = syscall.Kill(-trainer, syscall.SIGKILL)
			leave(node.Outcome{Done: true, Step: 9, Generation: phalanx.Generation{Number: 2}, Digest: phalanx.Digest{1, 2}})
		}
	}
}

// fakeTrainerOf starts the command, or takes over the one that an earlier daemon started.
func fakeTrainerOf(dir string, paths node.Paths, s *settings.Settings, index int, must func(error)) int {
	file := filepath.Join(paths.Member(index), "trainer")
	if b, err := os.ReadFile(file); err == nil {
		pid, err := strconv.Atoi(strings.TrimSpace(string(b)))
		if err == nil && syscall.Kill(pid, 0) == nil {
			return pid
		}
	}
	log := paths.TrainerLog(phalanx.Incarnate{Member: s.Member(index), Incarnation: 1})
	must(os.MkdirAll(filepath.Dir(log), 0o700))
	out, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	must(err)
	c := exec.Command(s.Command[0], s.Command[1:]...)
	c.Stdout, c.Stderr = out, out
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	must(c.Start())
	go func() { _ = c.Wait() }() // ends with the trainer
	must(os.WriteFile(file, []byte(itoa(c.Process.Pid)), 0o600))
	return c.Process.Pid
}

func fakeStatus(s *settings.Settings, index, trainer int) node.Status {
	st := node.Status{Job: s.Job, Generation: 1, Phase: "running", Step: 5, Leader: s.Member(0), AnsweredBy: s.Member(index), Fresh: true, Slots: 4, Efficiency: 1}
	for i := range s.LocalSize() {
		m := node.MemberStatus{Member: s.Member(i), Incarnation: 1, Host: s.Host, Rank: i, State: "active", Role: "voter", Slots: []int{i, i + 1}}
		b, _ := os.ReadFile(filepath.Join(node.NewPaths(s.Dir, "").Member(i), "trainer"))
		m.TrainerPID, _ = strconv.Atoi(string(b))
		if i == index {
			m.TrainerPID, m.DaemonPID = trainer, os.Getpid()
		}
		st.World = append(st.World, m.Member)
		st.Members = append(st.Members, m)
	}
	return st
}

// fakeTrainer prints a line at its start and at every USR1.
func fakeTrainer() {
	c := make(chan os.Signal, 4)
	signal.Notify(c, syscall.SIGUSR1)
	fmt.Println("trainer is up")
	for {
		select {
		case <-c:
			fmt.Println("trainer got USR1")
		case <-time.After(time.Minute):
			fmt.Println("trainer is left alone")
			os.Exit(1)
		}
	}
}

// errNotYet is for polls.
var errNotYet = errors.New("not yet")
