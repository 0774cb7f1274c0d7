// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"time"

	"phalanx"
	"phalanx/client/wire"
	"phalanx/elastic"
)

// placeWait is how long a question for a place waits for the leader's answer; the trainer asks again.
const placeWait = 5 * time.Second

// maxGroup bounds the group size that is asked for.
const maxGroup = 1 << 16

// handlePlace tells the trainer at which coordinate it is to sit, before its hello. The leader decides, because it alone sees what
// the others were told; a life of a member is told the same each time.
func (d *Daemon) handlePlace(w http.ResponseWriter, r *http.Request) {
	if !allowed(r) {
		respond(w, http.StatusForbidden, wire.Error{Message: "this socket belongs to another user", Code: wire.CodeBadRequest})
		return
	}
	size, err := strconv.Atoi(r.URL.Query().Get("group_size"))
	if err != nil || size < 1 || size > maxGroup {
		respond(w, http.StatusBadRequest, wire.Error{Message: fmt.Sprintf("group_size=%.20s is no group size", r.URL.Query().Get("group_size")),
			Hint: "give the number of ranks that hold one copy of the model together", Code: wire.CodeBadRequest})
		return
	}
	pin, refused := d.placeOf(r.Context(), size)
	if refused != nil {
		respond(w, http.StatusConflict, refused)
		return
	}
	respond(w, http.StatusOK, wire.PlaceAnswer{Coordinate: pin.Coordinate()})
}

// placeOf is the coordinate of the present life in groups of a size.
func (d *Daemon) placeOf(ctx context.Context, size int) (phalanx.Pin, *wire.Error) {
	ctx, cancel := context.WithTimeout(ctx, placeWait)
	defer cancel()
	type known struct {
		life    *life
		pin     phalanx.Pin
		refused *wire.Error
	}
	answered := make(chan known, 1) // 1: the loop answers once
	err := d.onLoop(ctx, func() {
		k := known{life: d.life}
		k.pin, k.refused = d.ownPlace(size)
		answered <- k
	})
	if err != nil {
		return 0, busy(err.Error())
	}
	k := <-answered
	if k.refused != nil || k.pin != phalanx.AnyPlace {
		return k.pin, k.refused
	}
	reply, err := d.ask(ctx, &Request{Place: size, Local: d.cfg.LocalSize})
	switch {
	case err != nil:
		return 0, busy(err.Error())
	case reply.Error != "":
		return 0, busy(reply.Error)
	case reply.Place == phalanx.AnyPlace || !reply.Place.Valid(size):
		return 0, busy(fmt.Sprintf("the leader gave %s of groups of %d", reply.Place, size))
	}
	told := make(chan bool, 1) // 1: the loop answers once
	err = d.onLoop(ctx, func() {
		same := d.life == k.life
		if same {
			k.life.place = reply.Place
			d.dirty = true // the next leader hears it from the report
		}
		told <- same
	})
	if err != nil || !<-told {
		return 0, busy("this incarnation has ended")
	}
	return reply.Place, nil
}

// ownPlace is what is known here already; no pin when the leader has to be asked.
func (d *Daemon) ownPlace(size int) (phalanx.Pin, *wire.Error) {
	l := d.life
	switch {
	case d.plain != nil:
		return 0, &wire.Error{Message: "this job runs without the step protocol", Hint: "run it with --plain=false", Code: wire.CodeProtocol}
	case l == nil || l.died != nil:
		return 0, &wire.Error{Message: "this incarnation has ended", Hint: "exit; a new trainer is started", Code: wire.CodeFenced}
	case d.state.Spec != nil && d.state.GroupSize() != size:
		return 0, &wire.Error{Message: fmt.Sprintf("the trainer asks for its place in groups of %d, the job has groups of %d", size, d.state.GroupSize()),
			Hint: "start it with the job's own arguments, or a new job in another --dir", Code: wire.CodeSpecDiffers}
	}
	for _, pin := range []phalanx.Pin{l.pin, d.state.PinOf(l.who), l.place} {
		if pin != phalanx.AnyPlace && pin.Valid(size) {
			return pin, nil
		}
	}
	return 0, nil
}

func busy(why string) *wire.Error {
	return &wire.Error{Message: why, Hint: "ask again", Code: wire.CodeBusy}
}

// place gives a member its coordinate. Everybody who is here gets one at the same time, in order of members, and so do those of the
// asker's host that are still to come, so that it does not depend on who asks first.
func (a *arbiter) place(id phalanx.MemberID, r *Request) (phalanx.Pin, error) {
	size := r.Place
	if s := a.d.state; size > maxGroup || s.Spec != nil && s.GroupSize() != size {
		return 0, errors.New("the job has another group size")
	}
	if a.placed != size { // nobody was admitted with the other size, or the spec would say it
		a.placed, a.given = size, map[phalanx.MemberID]phalanx.Pin{}
	}
	pins := map[phalanx.MemberID]phalanx.Pin{id: 0}
	for _, v := range a.members {
		connected := v.local || v.conn != nil
		if v.report != nil && v.report.Failed == "" && connected || v.report == nil && connected {
			pins[v.id] = 0
		}
	}
	for i := range a.d.state.Members {
		if m := &a.d.state.Members[i]; m.State != elastic.Gone {
			pins[m.Member] = 0
		}
	}
	for i := range min(r.Local, MaxLocal) {
		pins[phalanx.NewMemberID(id.Host(), i)] = 0
	}
	here := slices.SortedFunc(maps.Keys(pins), phalanx.CompareMemberIDs)
	for _, other := range here {
		pins[other] = a.pinOf(other, size)
	}
	elastic.Places(here, pins, size)
	maps.Copy(a.given, pins)
	return pins[id], nil
}

// pinOf is where a member is placed already: by its hello, by what it was told, or in its last life.
func (a *arbiter) pinOf(id phalanx.MemberID, size int) phalanx.Pin {
	pins := []phalanx.Pin{a.given[id]}
	if v := a.members[id]; v != nil && v.report != nil {
		pins = []phalanx.Pin{v.report.Pin, v.report.Place, a.given[id]}
	}
	if m := a.d.state.Member(id); m != nil {
		pins = append(pins, m.Pin)
	}
	for _, pin := range pins {
		if pin != phalanx.AnyPlace && pin.Valid(size) {
			return pin
		}
	}
	return phalanx.AnyPlace
}
