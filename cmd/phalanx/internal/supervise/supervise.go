// SPDX-License-Identifier: Apache-2.0

package supervise

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"phalanx/client/wire"
	"phalanx/cmd/phalanx/internal/control"
	"phalanx/cmd/phalanx/internal/settings"
	"phalanx/membership"
	"phalanx/node"
)

const (
	leaveTime   = 30 * time.Second // for a daemon whose outcome is written, and for the last member of a job that is done
	quickDeath  = time.Second      // a daemon that ends sooner did not get to work
	failedDeath = 5 * time.Second  // likewise, when it said itself that it failed
	maxQuick    = 5                // quick deaths in a row
	firstPause  = 100 * time.Millisecond
	maxPause    = 10 * time.Second
	mendTime    = 5 * time.Minute // for what a daemon that had worked stumbles over: a disk that is full may have room again
	lookEvery   = time.Second     // for daemons that do not end
	stopRetry   = 200 * time.Millisecond
	callTimeout = 5 * time.Second
	lookTimeout = time.Second // for questions asked inside the loop
)

// Config is what a run is started with. The caller holds the lock of the directory.
type Config struct {
	Settings *settings.Settings
	// Program and the arguments that Daemon returns, its own name included, start the daemon of a member; it reads
	// DIR/run.json.
	Program string
	Daemon  func(index int) []string
	// Env is the environment of the daemons; it has the key if that is in no file.
	Env []string
	// Attach are daemons that live already, by what an earlier run started.
	Attach  []control.Living
	Stdout  io.Writer
	Signals <-chan os.Signal // TERM, INT, USR1, USR2, HUP, WINCH
	Log     *slog.Logger
}

// daemon is one member's daemon. The loop owns it.
type daemon struct {
	index    int
	pid      int // 0: none lives
	attached bool
	started  time.Time
	endingAt time.Time   // when its outcome was first seen beside the living process
	quick    int         // quick deaths in a row
	quickAt  time.Time   // the first of them
	worked   bool        // a daemon of this member has lived for longer
	pause    *time.Timer // until the next start, nil when none is put off
	words    *os.File    // memory with its last words, nil of one that an earlier run started
	unwatch  func()      // lets the pidfd go
	stopSent context.CancelFunc
	outcome  *node.Outcome
	status   unix.WaitStatus // of the newest end, if it was a child
	reaped   int             // pid that status belongs to
}

// supervisor is one run.
type supervisor struct {
	Config
	dir     string
	ctx     context.Context
	daemons []*daemon
	ended   chan ending // as many as daemons: each has one life at a time, and one end is handled before the next life
	again   chan int    // as many as daemons: a pause is over
	stop    string      // why the job is being stopped, "" while it is not
	failure *node.Problem
	giveUpC <-chan time.Time // when the others have had time enough to leave after a failure
	warm    *keeper          // nil: no process is started ahead
	doneAt  time.Time        // when the first member of this host said that the job is done
}

type ending struct{ index, pid int }

// Interrupted is returned when a second INT ended everything at once.
var Interrupted = &node.Problem{Code: node.CodeInterrupt, Err: errors.New("interrupted; daemons and trainers of this host were killed"),
	Hint: "the same command goes on from the newest state"}

// Run holds the daemons up until each has an outcome. All output of the trainers is printed when it returns.
func Run(ctx context.Context, c Config) (node.Outcome, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s := &supervisor{Config: c, dir: c.Settings.Dir, ctx: ctx, ended: make(chan ending, c.Settings.LocalSize()), again: make(chan int, c.Settings.LocalSize())}
	// Trainers whose daemon was killed come to this process, so that they are reaped and their death is seen at once.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		c.Log.Warn("orphans of this job go to init", "error", err)
	}
	out := newFollower(filepath.Join(s.dir, "log"), c.Settings.Host, c.Stdout)
	followCtx, stopFollowing := context.WithCancel(context.Background())
	followed := make(chan struct{})
	go func() { // ends before Run returns
		defer close(followed)
		out.run(followCtx)
	}()
	defer func() {
		stopFollowing()
		<-followed
		out.finish()
	}()
	defer s.release()
	if err := s.begin(); err != nil {
		if len(c.Attach) == 0 { // what lived before goes on
			s.killAll()
		}
		return node.Outcome{}, err
	}
	if s.Settings.Warm > 0 {
		s.warm = s.newKeeper()
		warmCtx, stopWarm := context.WithCancel(ctx)
		cooled := make(chan struct{})
		go func() { // ends before Run returns
			defer close(cooled)
			s.warm.run(warmCtx)
		}()
		defer func() {
			stopWarm()
			<-cooled
			s.reap()
		}()
	}
	noteCtx, stopNotes := context.WithCancel(ctx)
	noted := make(chan struct{})
	go func() { // ends before Run returns
		defer close(noted)
		s.tellNotes(noteCtx)
	}()
	defer func() {
		stopNotes()
		<-noted
	}()
	return s.loop()
}

// begin attaches to what lives and starts what does not.
func (s *supervisor) begin() error {
	for index := range s.Settings.LocalSize() {
		s.daemons = append(s.daemons, &daemon{index: index})
	}
	for _, l := range s.Attach {
		if l.Index < len(s.daemons) {
			s.attach(s.daemons[l.Index], l)
		}
	}
	for _, d := range s.daemons {
		select {
		case sig := <-s.Signals: // there may be hundreds to start
			if s.take(sig) {
				s.killAll()
				return Interrupted
			}
		default:
		}
		if d.pid != 0 {
			continue
		}
		if s.stop != "" {
			d.outcome = &node.Outcome{Code: node.CodePreempted, Reason: "stopped before all daemons were started", Hint: "run the same command again"}
			continue
		}
		// Beside living daemons an outcome is of this same job: the member has ended and stays so.
		if len(s.Attach) > 0 {
			if d.outcome = readOutcome(s.dir, d.index); d.outcome != nil {
				continue
			}
		}
		if err := forget(s.dir, d.index); err != nil {
			return err
		}
		if err := s.start(d); err != nil {
			return err
		}
	}
	return nil
}

func (s *supervisor) attach(d *daemon, l control.Living) {
	unwatch, err := s.watch(d.index, l.PID)
	if err != nil || !membership.Alive(l.PID, l.Start) {
		if unwatch != nil {
			unwatch()
		}
		return // it has ended meanwhile; begin starts another
	}
	d.pid, d.attached, d.worked, d.started, d.unwatch = l.PID, true, true, time.Now(), unwatch
	s.Log.Info("attached to a living daemon", "member", s.Settings.Member(d.index), "pid", d.pid)
}

func (d *daemon) forgetWords() {
	if d.words != nil {
		_ = d.words.Close()
		d.words = nil
	}
}

func (s *supervisor) watch(index, pid int) (func(), error) {
	return waitPID(pid, func() {
		select {
		case s.ended <- ending{index, pid}:
		case <-s.ctx.Done():
		}
	})
}

func (s *supervisor) start(d *daemon) error {
	member := s.Settings.Member(d.index)
	d.forgetWords()
	words, err := newWords()
	if err != nil {
		return err
	}
	d.words = words
	argv := append(s.Daemon(d.index), "--"+WordsFlag, strconv.Itoa(wordsFD))
	pid, niced, err := spawn(s.Program, argv, s.Env, DaemonLog(s.dir, member), words)
	if err != nil {
		return err
	}
	d.pid, d.attached, d.started = pid, false, time.Now()
	// The child is reaped by the loop alone, so its pid cannot belong to another process here.
	if d.unwatch, err = s.watch(d.index, pid); err != nil {
		return err
	}
	if !niced && d.index == 0 && d.quick == 0 {
		s.Log.Info("daemons run at normal priority; the kernel does not allow a higher one", "member", member)
	}
	if s.stop != "" {
		s.askToStop(d)
	}
	return nil
}

// newKeeper makes what starts trainers ahead. They have the environment of a daemon's: not the key.
func (s *supervisor) newKeeper() *keeper {
	k := &keeper{
		want: s.Settings.Warm, host: s.Settings.Host, paths: node.NewPaths(s.dir, ""), command: s.Settings.Command, log: s.Log, nice: mayRaise(), plain: s.Settings.Plain,
		wake: make(chan struct{}, 1), // 1: one look sees all
	}
	for _, e := range s.Env {
		if !strings.HasPrefix(e, settings.KeyVariable+"=") {
			k.env = append(k.env, e)
		}
	}
	k.env = append(k.env, node.StartEnv(s.Settings.Plain, s.Settings.LocalSize())...)
	if s.Settings.Plain { // its scripts read their rank before they reach for the daemon
		k.env = append(k.env, wire.WarmAtVariable+"=import")
	} else { // the same in every place
		k.env = append(k.env, "WORLD_SIZE="+strconv.Itoa(s.Settings.Policy().Want), "LOCAL_WORLD_SIZE="+strconv.Itoa(s.Settings.LocalSize()))
	}
	if !k.nice {
		s.Log.Info("trainers are started ahead at normal priority: a lower one could not be taken back here")
	}
	return k
}

func (s *supervisor) release() {
	for _, d := range s.daemons {
		if d.unwatch != nil {
			d.unwatch()
		}
		if d.stopSent != nil {
			d.stopSent()
		}
		if d.pause != nil {
			d.pause.Stop()
		}
		d.forgetWords()
	}
}

func (s *supervisor) loop() (node.Outcome, error) {
	children := make(chan os.Signal, 1) // 1: reaping takes all that have ended
	signal.Notify(children, unix.SIGCHLD)
	defer signal.Stop(children)
	look := time.NewTicker(lookEvery)
	defer look.Stop()
	for !s.over() {
		select {
		case now := <-look.C:
			s.hurry(now)
		case <-s.ctx.Done():
			return node.Outcome{}, context.Cause(s.ctx)
		case <-children:
			s.reap()
		case index := <-s.again:
			s.restart(s.daemons[index])
		case <-s.giveUpC:
			s.killAll()
			s.failure.Err = fmt.Errorf("%w; the others did not leave in time and were killed", s.failure.Err)
			return node.Outcome{}, s.failure
		case e := <-s.ended:
			if d := s.daemons[e.index]; d.pid == e.pid {
				s.reap()
				s.died(d)
			}
		case sig := <-s.Signals:
			if s.take(sig) {
				s.killAll()
				return node.Outcome{}, Interrupted
			}
		}
	}
	s.reap()
	if s.failure != nil {
		return node.Outcome{}, s.failure
	}
	var outcomes []node.Outcome
	for _, d := range s.daemons {
		if d.outcome != nil { // none: killed after the job was done
			outcomes = append(outcomes, *d.outcome)
		}
	}
	return conclude(outcomes), nil
}

// over reports whether no daemon lives and none will be started.
func (s *supervisor) over() bool {
	for _, d := range s.daemons {
		if d.pid != 0 || d.outcome == nil && !s.ending() {
			return false
		}
	}
	return true
}

// ending reports whether no daemon is started any more: the run has failed, or the job is done and took too long to say so.
func (s *supervisor) ending() bool { return s.failure != nil || s.late(time.Now()) }

// late reports whether the job has been done for longer than its last member may take to leave.
func (s *supervisor) late(now time.Time) bool {
	return !s.doneAt.IsZero() && now.Sub(s.doneAt) > time.Duration(s.Settings.Grace)+leaveTime
}

// died handles the end of a daemon: it has an outcome, or is started again, or is given up.
func (s *supervisor) died(d *daemon) {
	pid, lived := d.pid, time.Since(d.started)
	member := s.Settings.Member(d.index)
	d.pid, d.endingAt = 0, time.Time{}
	d.unwatch()
	if d.stopSent != nil {
		d.stopSent()
		d.stopSent = nil
	}
	if d.outcome = readOutcome(s.dir, d.index); d.outcome != nil {
		s.Log.Info("member ended", "member", member, "step", uint64(d.outcome.Step), "code", d.outcome.Code)
		if d.outcome.Done && s.doneAt.IsZero() {
			s.doneAt = time.Now()
		}
		s.failedAlone(d)
		return
	}
	if s.ending() {
		return
	}
	how := "ended"
	if d.reaped == pid {
		how = exitStatus(d.status)
	}
	failure := readFailure(s.dir, d.index, pid)
	if failure == nil {
		failure, _ = readWords(d.words)
	}
	if lived < quickDeath || failure != nil && lived < failedDeath {
		if d.quick++; d.quick == 1 {
			d.quickAt = time.Now()
		}
	} else {
		d.quick, d.worked = 0, true
	}
	if d.quick >= maxQuick && (!d.worked || s.stop != "" || time.Since(d.quickAt) > mendTime) {
		s.giveUp(d, how, failure)
		return
	}
	why := ""
	if failure != nil {
		why = failure.Reason
	}
	wait := restartPause(d.quick)
	s.Log.Warn("daemon died and is started again", "member", member, "pid", pid, "how", how, "why", why, "pause", wait)
	if wait == 0 || s.stop != "" {
		s.restart(d)
		return
	}
	d.pause = time.AfterFunc(wait, func() { s.again <- d.index })
}

// restartPause is how long a daemon that has died so often in a row is not started.
func restartPause(quick int) time.Duration {
	if quick < 2 {
		return 0 // most deaths do not come back
	}
	return min(firstPause<<min(quick-2, 10), maxPause)
}

func (s *supervisor) restart(d *daemon) {
	d.pause = nil
	if s.ending() {
		return
	}
	if err := s.start(d); err != nil {
		s.fail(&node.Problem{Code: node.CodeFailed, Err: err}, fmt.Sprintf("the daemon of %s cannot be started", s.Settings.Member(d.index)))
	}
}

// fail ends the run. The others leave in order.
func (s *supervisor) fail(p *node.Problem, why string) {
	s.failure = p
	s.giveUpC = time.After(s.giveUpTime())
	s.stopAll(why)
}

// giveUp ends the run because a daemon cannot be held up.
func (s *supervisor) giveUp(d *daemon, how string, failure *Failure) {
	member := s.Settings.Member(d.index)
	p := &node.Problem{Code: node.CodeFailed, Hint: "its log is " + DaemonLog(s.dir, member)}
	if failure != nil {
		p.Code = failure.Code
		p.Err = fmt.Errorf("the daemon of %s does not start: %s", member, failure.Reason)
		if failure.Hint != "" {
			p.Hint = failure.Hint
		}
	} else {
		// What the kernel or Go's runtime ended with a crash is told by the log, unless that is full.
		tail := lastLines(DaemonLog(s.dir, member), 10)
		if _, crash := readWords(d.words); crash != "" && full(s.dir) != "" {
			tail = strings.Split(crash, "\n")
		}
		p.Err = fmt.Errorf("the daemon of %s died %d times at its start (%s); the end of its log:\n  %s", member, maxQuick, how, strings.Join(tail, "\n  "))
	}
	if why := full(s.dir); why != "" {
		p.Err = fmt.Errorf("%w; %s", p.Err, why)
		p.Hint = "make room there, or choose another place with --dir"
	}
	s.fail(p, fmt.Sprintf("the daemon of %s does not start", member))
}

// failedAlone ends the run when a member could not even begin and no job is running here that could do without it: the rest
// would wait for ever.
func (s *supervisor) failedAlone(d *daemon) {
	o := d.outcome
	if o.Code == 0 || o.Code == node.CodePreempted || !o.Generation.IsZero() || s.failure != nil {
		return
	}
	ctx, cancel := context.WithTimeout(s.ctx, lookTimeout)
	defer cancel()
	if st, err := control.AnyStatus(ctx, s.dir, false); err == nil && (st.Generation > 0 || st.Epoch > 0) {
		return
	}
	s.fail(&node.Problem{Code: o.Code, Err: errors.New(o.Reason), Hint: o.Hint}, "a member of this host could not begin")
}

// reap takes the statuses of all children that have ended: daemons, and trainers whose daemon was killed.
func (s *supervisor) reap() {
	for {
		var status unix.WaitStatus
		pid, err := unix.Wait4(-1, &status, unix.WNOHANG, nil)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || pid <= 0 {
			return
		}
		known := false
		for _, d := range s.daemons {
			if d.pid == pid {
				d.status, d.reaped, known = status, pid, true
			}
		}
		if !known {
			s.warm.reaped(pid, status)
		}
		if !known && s.Settings.Plain {
			node.NotePlainExit(s.dir, s.Settings.LocalSize(), pid, exitCode(status))
		}
	}
}
