// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"fmt"
	"net/http"
	"slices"

	"phalanx"
	"phalanx/client/wire"
	"phalanx/collective/host"
)

// madeGroup is a group of ranks that the trainer has made, for the engine of its generation, which may not be formed yet. The loop
// owns it.
type madeGroup struct {
	generation phalanx.Generation
	id         uint64
	ranks      []phalanx.Rank
	aborted    bool
	given      bool // to the engine
}

// handleGroup serves wire.GroupPath.
func (d *Daemon) handleGroup(w http.ResponseWriter, r *http.Request) {
	var g wire.Group
	if !readBody(w, r, &g) {
		return
	}
	answered := make(chan *wire.Error, 1) // 1: the loop answers once, also a trainer that has gone meanwhile
	if err := d.onLoop(r.Context(), func() { answered <- d.makeGroup(&g) }); err != nil {
		respond(w, http.StatusConflict, wire.Error{Message: err.Error(), Code: wire.CodeBusy})
		return
	}
	switch refused := <-answered; {
	case refused == nil:
		respond(w, http.StatusOK, struct{}{})
	case refused.Code == wire.CodeBadRequest:
		respond(w, http.StatusBadRequest, refused)
	default:
		respond(w, http.StatusConflict, refused)
	}
}

// makeGroup takes the wish of the trainer for a group. The engine has it as soon as it is formed.
func (d *Daemon) makeGroup(g *wire.Group) *wire.Error {
	l := d.life
	if l == nil || l.died != nil {
		return &wire.Error{Message: "this incarnation has ended", Hint: "exit; a new trainer is started", Code: wire.CodeFenced}
	}
	seat, written := l.page.ReadSeat()
	if g.Generation.IsZero() {
		g.Generation = seat.Generation
	}
	world := &d.state.World
	switch {
	case l.groupBoard() == 0:
		return &wire.Error{Message: "the trainer has room for no groups", Hint: "say hello first, with \"groups\" for a job with steps", Code: wire.CodeBusy}
	case written == 0 || seat.Generation.IsZero() || seat.Generation.Less(g.Generation):
		return &wire.Error{Message: "there is no seat in generation " + g.Generation.String() + " yet", Hint: "ask again", Code: wire.CodeBusy}
	case g.Generation != seat.Generation || g.Generation != world.Generation:
		return &wire.Error{Message: fmt.Sprintf("generation %s is over", g.Generation), Hint: "make the group in the generation of the next seat", Code: wire.CodeFenced}
	}
	if why := groupProblem(g, seat.Rank, world.Size()); why != "" {
		return &wire.Error{Message: fmt.Sprintf("group %#x: %s", g.ID, why), Hint: "see docs/protocol.md", Code: wire.CodeBadRequest}
	}
	l.groups = slices.DeleteFunc(l.groups, func(o *madeGroup) bool { return o.generation.Less(g.Generation) })
	for _, o := range l.groups {
		if o.id == g.ID && o.generation == g.Generation {
			if !slices.Equal(o.ranks, g.Ranks) {
				return &wire.Error{Message: fmt.Sprintf("group %#x is made of ranks %v, not %v", g.ID, o.ranks, g.Ranks), Hint: "give each group an id of its own", Code: wire.CodeBadRequest}
			}
			if !o.aborted {
				return nil
			}
		}
	}
	made := &madeGroup{generation: g.Generation, id: g.ID, ranks: g.Ranks}
	if d.engine.Settled(g.Generation) {
		if refused := d.giveGroup(made); refused != nil {
			return refused
		}
		made.given = true
	} else if n := len(l.groups); n >= l.groupBoard() {
		return noRoom(n)
	}
	l.groups = slices.DeleteFunc(l.groups, func(o *madeGroup) bool { return o.id == g.ID })
	l.groups = append(l.groups, made)
	return nil
}

func noRoom(n int) *wire.Error {
	return &wire.Error{Message: fmt.Sprintf("the trainer has %d groups that are in use", n), Hint: "abort those that are not needed, on all their members", Code: wire.CodeNoSpace}
}

// groupProblem says what is wrong with a group, "" if nothing is.
func groupProblem(g *wire.Group, own phalanx.Rank, world int) string {
	switch {
	case g.ID < wire.FirstGroup || g.ID > wire.LastGroup:
		return fmt.Sprintf("ids are from %#x to %#x", uint64(wire.FirstGroup), uint64(wire.LastGroup))
	case len(g.Ranks) > world:
		return fmt.Sprintf("%d ranks of a world of %d", len(g.Ranks), world)
	case !slices.Contains(g.Ranks, own):
		return fmt.Sprintf("own rank %d is not one of %v", own, g.Ranks)
	}
	for i, r := range g.Ranks {
		if r < 0 || int(r) >= world || slices.Contains(g.Ranks[:i], r) {
			return fmt.Sprintf("rank %d is not of the world, or there twice", r)
		}
	}
	return ""
}

// giveGroup makes a group in the engine, and refuses it with the engine's reason.
func (d *Daemon) giveGroup(g *madeGroup) *wire.Error {
	switch err := d.engine.Make(g.generation, g.id, g.ranks); {
	case err == nil:
		return nil
	case errors.Is(err, phalanx.ErrStaleGeneration):
		return &wire.Error{Message: err.Error(), Hint: "make the group in the generation of the next seat", Code: wire.CodeFenced}
	case errors.Is(err, host.ErrFull):
		return noRoom(d.life.groupBoard())
	default:
		return &wire.Error{Message: err.Error(), Hint: "see docs/protocol.md", Code: wire.CodeBadRequest}
	}
}

// giveGroups makes in a generation that was formed what the trainer has asked for meanwhile, before anything is posted in it.
func (d *Daemon) giveGroups(gen phalanx.Generation) {
	for _, g := range d.life.groups {
		if g.generation != gen || g.given {
			continue
		}
		g.given = true
		if refused := d.giveGroup(g); refused != nil {
			d.log.Warn("a group was not made; what is posted in it fails", "group", g.id, "error", refused.Message)
		}
		if g.aborted {
			d.engine.Abort(gen, g.id)
		}
	}
}

// isMade reports whether a descriptor's group is one that trainers make.
func isMade(group uint64) bool { return group >= wire.FirstGroup && group <= wire.LastGroup }

// groupAborted reports whether the trainer has aborted a group before the engine knew it.
func (l *life) groupAborted(v *wire.Descriptor) bool {
	return isMade(v.Group) && slices.ContainsFunc(l.groups, func(g *madeGroup) bool {
		return g.aborted && g.id == v.Group && g.generation == v.Generation
	})
}

// endAborted ends the descriptors of aborted groups that wait for their generation to be formed: nobody may ever come.
func (d *Daemon) endAborted() {
	l := d.life
	for seq := l.posted + 1; seq <= l.page.RingHead(); seq++ {
		if v := l.page.ReadDescriptor(seq); l.page.Completion(seq) == wire.StatusNone && l.groupAborted(&v) {
			l.page.CompleteDescriptor(seq, wire.StatusRevoked)
			d.ringTrainer()
		}
	}
}

// scanAborts carries out what the trainer asks to abort.
func (d *Daemon) scanAborts() {
	l := d.life
	for i := range wire.AbortCount {
		a, n := l.page.ReadAbort(i)
		if n == 0 || l.aborts[i] == n {
			continue
		}
		l.aborts[i] = n
		if answered, _ := wire.ParseAnswer(l.page.Aborted(i)); answered == a.Sequence {
			continue // by the daemon before this one
		}
		answer := func(s wire.Status) {
			l.page.SetAborted(i, wire.Answer(a.Sequence, s))
			d.ringTrainer()
		}
		if !isMade(a.Group) {
			answer(wire.StatusFailed)
			continue
		}
		for _, g := range l.groups {
			if g.id == a.Group && g.generation == a.Generation {
				g.aborted = true
			}
		}
		d.endAborted()
		over := d.engine.Abort(a.Generation, a.Group)
		d.ends.Go(func() { // the engine's worker checks at every chunk
			<-over
			d.post(func() {
				if d.life == l {
					answer(wire.StatusOK)
				}
			})
		})
	}
}
