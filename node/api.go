// SPDX-License-Identifier: Apache-2.0

package node

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"phalanx"
	"phalanx/client/wire"
	"phalanx/consensus"
	"phalanx/elastic"
)

// maxRequest bounds the body of a request over the socket.
const maxRequest = 16 << 20

// serveSocket serves the trainer and the command line over the unix socket. Its file's rights say who may.
func (d *Daemon) serveSocket() error {
	path := d.paths.Socket(d.cfg.Index)
	l, err := d.paths.system.ListenLocal(path)
	if err != nil {
		return &Problem{CodeFailed, fmt.Errorf("make the socket of the trainer: %w", err), "check the rights of " + filepath.Dir(path) + " and the space there"}
	}
	mux := http.NewServeMux()
	mux.HandleFunc("POST "+wire.HelloPath, d.handleHello)
	mux.HandleFunc("GET "+storePath, d.kv.handle)
	mux.HandleFunc("POST "+wire.GroupPath, d.handleGroup)
	mux.HandleFunc("GET "+wire.PlacePath, d.handlePlace)
	mux.HandleFunc("POST /v1/stop", d.handleStop)
	mux.HandleFunc("POST /v1/drain", d.handleDrain)
	mux.HandleFunc("POST /v1/resize", d.handleResize)
	d.readOnly(mux)
	d.takeIn(mux)
	srv := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second, ConnContext: func(ctx context.Context, c net.Conn) context.Context {
		return context.WithValue(ctx, peerUID{}, d.paths.system.PeerUID(c))
	}}
	d.ends.Go(func() { _ = srv.Serve(l) })
	d.ends.Go(func() { <-d.ctx.Done(); _ = srv.Close() })
	return nil
}

// peerAPI serves the other daemons of the job.
func (d *Daemon) peerAPI() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/state", d.handleState)
	if d.plain != nil {
		mux.HandleFunc("GET "+rendezvousPath, d.plain.serve)
	}
	d.readOnly(mux)
	return mux
}

func (d *Daemon) readOnly(mux *http.ServeMux) {
	mux.HandleFunc("GET /v1/status", d.handleStatus)
	metrics := d.meters.handler()
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, r *http.Request) {
		d.freshView(r.Context())
		metrics.ServeHTTP(w, r)
	})
}

type peerUID struct{}

// allowed refuses other users, whatever the socket's rights have become.
func allowed(r *http.Request) bool {
	uid, _ := r.Context().Value(peerUID{}).(int)
	return uid == os.Getuid() || uid == 0
}

func respond(w http.ResponseWriter, code int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(v) // the client has gone: nobody to tell
}

func readBody(w http.ResponseWriter, r *http.Request, v any) bool {
	if !allowed(r) {
		respond(w, http.StatusForbidden, wire.Error{Message: "this socket belongs to another user", Code: wire.CodeBadRequest})
		return false
	}
	b, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxRequest))
	if err == nil {
		err = json.Unmarshal(b, v)
	}
	if err != nil {
		respond(w, http.StatusBadRequest, wire.Error{Message: "the request cannot be read: " + err.Error(), Code: wire.CodeBadRequest})
		return false
	}
	return true
}

// onLoop runs f on the loop and waits for it.
func (d *Daemon) onLoop(ctx context.Context, f func()) error {
	done := make(chan struct{})
	d.post(func() { f(); close(done) })
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-d.ctx.Done():
		return errors.New("the daemon is ending")
	}
}

func (d *Daemon) handleHello(w http.ResponseWriter, r *http.Request) {
	var h wire.Hello
	if !readBody(w, r, &h) {
		return
	}
	type answer struct {
		welcome *wire.Welcome
		refused *wire.Error
	}
	answered := make(chan answer, 1) // 1: the loop answers once, also a trainer that has gone meanwhile
	if err := d.onLoop(r.Context(), func() {
		welcome, refused := d.hello(&h)
		answered <- answer{welcome, refused}
	}); err != nil {
		respond(w, http.StatusConflict, wire.Error{Message: err.Error(), Code: wire.CodeBusy})
		return
	}
	if a := <-answered; a.refused != nil {
		respond(w, http.StatusConflict, a.refused)
	} else {
		respond(w, http.StatusOK, a.welcome)
	}
}

// handleStop asks this host's member to leave; when every member leaves, the job stops and resumes with the next run.
func (d *Daemon) handleStop(w http.ResponseWriter, r *http.Request) {
	var body struct {
		Why string `json:"why"`
	}
	if !readBody(w, r, &body) {
		return
	}
	err := d.onLoop(r.Context(), func() { d.leave(body.Why) })
	if err != nil {
		respond(w, http.StatusServiceUnavailable, wire.Error{Message: err.Error()})
		return
	}
	respond(w, http.StatusOK, map[string]bool{"ok": true})
}

// leave asks for an end in order. A daemon that no leader answers within the grace ends anyway.
func (d *Daemon) leave(why string) {
	if d.leaving {
		return
	}
	d.leaving, d.stopWhy, d.dirty = true, why, true
	d.log.Info("leaving", "why", why)
	if d.lead == nil && !d.up.connected && d.state.Member(d.me()) == nil {
		d.dismiss()
		d.end(Outcome{Code: CodePreempted, Reason: "stopped before the job was joined", Hint: "run the same command again to join it"})
		return
	}
	d.ends.Go(func() {
		select {
		case <-time.After(d.cfg.Grace + 5*time.Second):
			d.post(func() {
				d.dismiss()
				d.end(Outcome{Code: CodePreempted, Reason: "stopped without a leader's answer within the grace", Hint: "run the same command again to go on", Step: d.committed(), Generation: d.state.World.Generation})
			})
		case <-d.ctx.Done():
		}
	})
}

// dismiss lets the trainer go where no entry does: none is coming.
func (d *Daemon) dismiss() {
	l := d.life
	switch {
	case d.outcome != nil || l == nil || l.machine == nil || d.plain != nil:
	case l.helloPID == 0:
		l.trainer.kill() // it waits for nothing that could be told
	default:
		d.execute(elastic.WriteSeat{Do: elastic.SeatStop})
	}
}

func (d *Daemon) handleDrain(w http.ResponseWriter, r *http.Request) {
	var body struct {
		Member phalanx.MemberID `json:"member"`
		Why    string           `json:"why"`
	}
	if readBody(w, r, &body) {
		d.handleRequest(w, r, &Request{Drain: body.Member, Why: body.Why})
	}
}

func (d *Daemon) handleResize(w http.ResponseWriter, r *http.Request) {
	var body struct {
		Want int `json:"want"`
	}
	if readBody(w, r, &body) {
		d.handleRequest(w, r, &Request{Resize: body.Want})
	}
}

// handleRequest passes an operator's wish to the leader and its answer back.
func (d *Daemon) handleRequest(w http.ResponseWriter, r *http.Request, ask *Request) {
	ctx, cancel := context.WithTimeout(r.Context(), 10*time.Second)
	defer cancel()
	reply, err := d.ask(ctx, ask)
	switch {
	case err != nil:
		respond(w, http.StatusGatewayTimeout, wire.Error{Message: err.Error()})
	case reply.Error != "":
		respond(w, statusOf(reply.Code), wire.Error{Message: reply.Error, Hint: "see: phalanx members"})
	default:
		respond(w, http.StatusOK, map[string]bool{"ok": true})
	}
}

// ask passes a request to the leader, which may be this daemon, and waits for its answer.
func (d *Daemon) ask(ctx context.Context, ask *Request) (*Reply, error) {
	answer := make(chan *Reply, 1) // 1: one answer comes
	err := d.onLoop(ctx, func() {
		d.requests++
		ask.ID = d.requests
		switch {
		case d.lead != nil:
			d.lead.request(d.me(), ask, func(r *Reply) { answer <- r })
		case d.up.connected:
			d.waiting[ask.ID] = answer
			d.sendUp(&Message{Ask: ask})
		default:
			answer <- &Reply{Error: "no leader is known; try again", Code: CodeNoQuorum}
		}
	})
	if err != nil {
		return nil, err
	}
	select {
	case reply := <-answer:
		return reply, nil
	case <-ctx.Done():
		d.post(func() { delete(d.waiting, ask.ID) })
		return nil, errors.New("the leader has not answered; see phalanx status")
	}
}

// statusOf is the status of HTTP that stands for an exit code.
func statusOf(code int) int {
	switch code {
	case CodeUsage:
		return http.StatusBadRequest
	case CodeNotFound:
		return http.StatusNotFound
	case CodeNoQuorum:
		return http.StatusServiceUnavailable
	default:
		return http.StatusConflict
	}
}

func (d *Daemon) replied(r *Reply) {
	if c := d.waiting[r.ID]; c != nil {
		delete(d.waiting, r.ID)
		c <- r
	}
}

// handleStatus answers from the leader's knowledge where it can be reached, else from this daemon's own.
func (d *Daemon) handleStatus(w http.ResponseWriter, r *http.Request) {
	explain := r.URL.Query().Get("explain") != ""
	v := d.freshView(r.Context())
	if v == nil {
		respond(w, http.StatusServiceUnavailable, wire.Error{Message: "the daemon is starting", Code: wire.CodeBusy})
		return
	}
	if !v.Fresh && r.URL.Query().Get("local") == "" {
		if fresh := d.askLeader(r.Context(), v.Leader, explain); fresh != nil {
			respond(w, http.StatusOK, fresh)
			return
		}
	}
	out := *v
	if !explain {
		out.Transitions = nil
	}
	respond(w, http.StatusOK, &out)
}

func (d *Daemon) askLeader(ctx context.Context, leader phalanx.MemberID, explain bool) *Status {
	p, ok := d.roster.peer(leader)
	if !ok {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, 500*time.Millisecond)
	defer cancel()
	url := "http://" + p.Addr + "/v1/status?local=1"
	if explain {
		url += "&explain=1"
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil
	}
	res, err := d.peers.http.Do(req)
	if err != nil {
		return nil
	}
	defer res.Body.Close()
	s := new(Status)
	if res.StatusCode != http.StatusOK || json.NewDecoder(io.LimitReader(res.Body, maxMessage)).Decode(s) != nil || !s.Fresh {
		return nil
	}
	return s
}

// viewWait is how long an answer waits for the loop to say what is now; it then says what was.
const viewWait = 200 * time.Millisecond

// viewEvery is how old the view may become that is answered when the loop does not.
const viewEvery = time.Second

// freshView is what status answers now, nil when the daemon is starting. It is made when somebody asks.
func (d *Daemon) freshView(ctx context.Context) *Status {
	ctx, cancel := context.WithTimeout(ctx, viewWait)
	defer cancel()
	made := make(chan struct{}) // closed by the loop
	look := func() {
		d.publishView(time.Now())
		close(made)
	}
	select {
	case d.posts <- look:
		d.wake()
	default:
		return d.view.Load() // the loop is far behind
	}
	select {
	case <-made:
	case <-ctx.Done():
	}
	return d.view.Load()
}

// publishView makes what status answers.
func (d *Daemon) publishView(now time.Time) {
	d.viewed = now
	s := d.state
	v := &Status{
		Job: d.cfg.Job, Generation: s.World.Generation.Number, Epoch: s.World.Generation.Epoch, Branch: s.Branch, Phase: s.Phase.String(),
		Step: d.committed(), GroupSize: s.GroupSize(), Slots: s.World.SlotCount, Efficiency: phalanx.Efficiency(s.World.SlotCount, s.World.Groups()),
		Floor: s.Floor.Step, Raft: d.raft.Status(), AnsweredBy: d.me(), Fresh: d.lead != nil, Transitions: s.Transitions, World: []phalanx.MemberID{},
	}
	if s.Spec != nil {
		v.LastStep = s.Spec.LastStep
	}
	if s.Halt != nil {
		v.Halt = s.Halt.Words
	}
	switch {
	case d.lead != nil:
		v.Leader = d.me()
	case d.up.connected:
		v.Leader = d.up.leader
	default:
		if id, _, ok := d.raft.Leader(); ok {
			if p, found := d.roster.byServer(id); found {
				v.Leader = p.Member
			}
		}
	}
	if p := s.NewestPublished(); p != nil {
		v.Published = &PublishedStatus{p.Step, p.Folder, p.UnixNS}
	}
	v.Saves = d.saver.status(now)
	for _, seat := range s.World.Seats {
		v.World = append(v.World, seat.Member)
	}
	if r := d.saver.record; r.Trouble != "" {
		v.Notes = append(v.Notes, fmt.Sprintf("the last %d saves failed: %s", r.Failures, r.Trouble))
	}
	if d.lead == nil && !d.up.connected && !d.leaderless.IsZero() && time.Since(d.leaderless) > 5*time.Second {
		v.Notes = append(v.Notes, fmt.Sprintf("no leader for %.0f s: a majority of the voters must be up; if their directories are lost, start the job in another --dir with the same --job and --store, it resumes from the newest checkpoint", time.Since(d.leaderless).Seconds()))
	}
	if d.lead != nil && d.lead.why != "" && time.Since(d.lead.whySince) > 5*time.Second && (s.Phase == elastic.Idle || s.Phase == elastic.Forming) {
		v.Notes = append(v.Notes, "the job waits: "+d.lead.why)
	}
	v.Notes = append(v.Notes, d.hindrances()...)
	v.Notes = append(v.Notes, d.storeTroubles(now)...)
	v.Notes = append(v.Notes, d.oneSlabs()...)
	if !d.niced {
		v.Notes = append(v.Notes, "daemons run at the trainers' priority: nice -5 is not allowed here")
	}
	servers, _ := d.raft.Servers()
	for i := range s.Members {
		v.Members = append(v.Members, d.memberStatus(&s.Members[i], servers))
	}
	for _, m := range v.Members {
		if m.Rank >= 0 {
			v.Step = max(v.Step, m.Step)
		}
	}
	d.view.Store(v)
}

// ownStatus adds what this daemon knows of its own life, if that is the one that the log knows: after a reboot the next one has
// begun before the log removes the last.
func (d *Daemon) ownStatus(out *MemberStatus) {
	if d.life.who.Incarnation != out.Incarnation {
		return
	}
	out.TrainerPID, out.Local = d.life.helloPID, d.life.machine.State().String()
	if d.life.died != nil {
		out.TrainerPID = 0
	}
}

func (d *Daemon) memberStatus(m *elastic.Member, servers []consensus.Server) MemberStatus {
	out := MemberStatus{Member: m.Member, Incarnation: m.Incarnation, Host: m.Host, Rank: -1, State: m.State.String(), Role: "watcher", Slots: []int{}, Why: m.Why}
	if seat := d.state.World.SeatOf(m.Member); seat != nil && seat.Incarnation == m.Incarnation {
		out.Rank, out.Slots = int(seat.Rank), []int{int(seat.Slots.First), int(seat.Slots.End)}
	}
	server := ""
	if p, ok := d.roster.peer(m.Member); ok {
		server, out.DaemonPID = p.Server, p.DaemonPID
	}
	if m.Member == d.me() {
		server = d.raft.ServerID()
		out.DaemonPID, _ = d.paths.system.Self()
		out.Step = d.committed()
		d.ownStatus(&out)
	}
	for _, s := range servers {
		if s.ID == server {
			out.Role = "standby"
			if s.Voter {
				out.Role = "voter"
			}
		}
	}
	if d.lead != nil {
		if v := d.lead.members[m.Member]; v != nil {
			if v.peer.DaemonPID != 0 {
				out.DaemonPID = v.peer.DaemonPID
			}
			if r := v.report; r != nil && r.Incarnation == m.Incarnation {
				out.TrainerPID, out.Local, out.HostBytes, out.Slabs = r.TrainerPID, r.Local, r.HostBytes, r.SlabCount
				if r.Possession.Holds {
					out.Step = max(out.Step, r.Possession.Label.Step)
				}
				if r.HealTotal > r.Healed && r.HealRate > 0 {
					out.HealSeconds = float64(r.HealTotal-r.Healed) / r.HealRate
				}
				if why := cmp.Or(r.Failed, r.Note); why != "" {
					out.Why = why
				}
			}
		}
	}
	if s := d.sibling(m.Member); s != nil && m.Member != d.me() && s.identity.Member == m.Member && s.life == m.Incarnation {
		out.DaemonPID = s.identity.DaemonPID
		switch {
		case s.identity.TrainerPID == 0: // not said hello: its own daemon knows better
		case s.trainer:
			out.TrainerPID = s.identity.TrainerPID
		default:
			out.TrainerPID = 0 // the page still names the one that has ended
		}
	}
	return out
}
