// SPDX-License-Identifier: Apache-2.0

package explore

import (
	"fmt"
	"strings"

	"phalanx"
	"phalanx/elastic"
)

// violation replays the way to a world and tells it as a story.
func (x *explorer) violation(id uint32, f found) (*Violation, error) {
	var way []hash
	for at := id; at != 0; at = x.visited.from[at] {
		way = append(way, x.visited.keys[at])
	}
	w, err := x.begin()
	if err != nil {
		return nil, err
	}
	t := teller{explorer: x}
	t.opening()
	k := &keyed{x: x, target: noTarget}
	depth := len(way)
	for n := len(way) - 1; n >= 0; n-- {
		d := &doing{x: x, world: w}
		var next *world
		for _, e := range d.events(nil) {
			if a := x.after(w, e); k.key(a) == way[n] {
				t.tell(w, e)
				next = a
				break
			}
		}
		if next == nil {
			return nil, fmt.Errorf("no event leads from step %d of the way to the next: the key leaves out something that matters", len(way)-1-n)
		}
		w = next
	}
	v := &Violation{What: f.wrong, Stuck: f.wrong != "", Depth: depth}
	if v.Stuck {
		t.goOn(w, f.sameLeader)
	} else {
		t.tell(w, *f.wrongNext)
		v.What = f.wrongWhat
		v.Depth++
	}
	v.Story = fmt.Sprintf("# %s\n", v.What) + t.String()
	return v, nil
}

// teller writes a way in the language of the stories.
type teller struct {
	*explorer
	strings.Builder
}

func (t *teller) line(format string, args ...any) { fmt.Fprintf(t, "> "+format+"\n", args...) }

func (t *teller) opening() {
	text := fmt.Sprintf("job want %d min %d", t.Want, t.Min)
	if t.Group > 1 {
		text += fmt.Sprintf(" group %d", t.Group)
	}
	if t.Finish {
		text += fmt.Sprintf(" last %d", t.Steps)
	}
	t.line("%s", text)
	if t.Opening {
		t.line("members")
	} else {
		names := make([]string, 0, t.Members)
		for _, id := range t.names[:t.Members-t.Joiners] {
			names = append(names, string(id))
		}
		t.line("members %s", strings.Join(names, " "))
	}
	t.line("close")
	if !t.Opening {
		t.line("run to 0")
	}
	t.line("limit 100")
	for _, words := range t.Before {
		t.line("%s", strings.ReplaceAll(words, "; ", "\n> "))
		if strings.HasPrefix(words, "run to ") {
			t.line("limit 100")
		}
	}
}

// tell writes what an event is to the stories.
func (t *teller) tell(w *world, e event) {
	id := t.names[e.member]
	acts := ""
	act := func(name string) { acts += " " + name }
	switch e.kind {
	case doRead:
		l := w.lives[e.member]
		for n := l.at.next(w.head); ; n = n.next(w.head) {
			act("read")
			if n.relevant {
				break
			}
		}
	case doForm:
		act("form")
	case doLeave:
		act("leave")
	case doHear:
		t.hear(w, e.member, int(e.arg>>4), phalanx.Step(e.arg&15))
	case doHearAll:
		d := &doing{x: t.explorer, world: w}
		d.each(int(e.member), phalanx.Step(e.arg), func(r phalanx.Rank, v elastic.Vote) {
			log := w.lives[e.member].machine.Log()
			t.hear(w, e.member, d.index(log.World.Seats[r].Member), v.Step)
		})
	case doApply:
		act("apply")
		if !t.Fine {
			act("applied")
		}
	case doApplied:
		act("applied")
	case doHeal:
		act("heal")
		if !t.Heals {
			act("healed")
		}
	case doHealed:
		act("healed")
	case doNotOK:
		t.line("not-ok %s", id)
		act("compute")
	case doFlip:
		t.line("flip %s", id)
		act("compute")
	case doCompute:
		act("compute")
	case doAsk:
		t.line("ask %s", id)
	case doSeal:
		act("seal")
	case doStart:
		t.line("start %s", id)
	case doRestart:
		t.line("restart %s", id)
	case doRenew:
		t.line("renew %s", id)
	case doLead:
		t.line("draft%s A%s", t.blindly(e.arg), t.list(e.arg))
		t.line("commit A")
	case doLeadAll:
		if e.arg > 0 {
			t.line("boundary %d", e.arg)
		}
		t.line("lead")
	case doDraft:
		t.line("draft%s %s%s", t.blindly(e.arg), w.draftName(), t.list(e.arg))
	case doCommit:
		t.line("commit %s", w.drafts[e.arg].name)
	case doPublish:
		t.line("publish")
	case doReach:
		t.line("reach %s", elastic.Levels[e.arg])
	case doResize:
		t.line("resize %d", e.arg)
	case doDrain:
		t.line("drain %s", id)
	case doQuarantine:
		t.line("quarantine %s", id)
	case doLift:
		t.line("lift %s", id)
	case doStop:
		t.line("stopped")
	case doResume:
		t.line("started-again")
	case doRewind:
		t.line("rewind")
	case doQuit:
		t.line("quit %s", id)
	case doInsist:
		t.line("insist-not-ok %s", id)
	case doKill:
		t.line("kill %s", id)
	case doLose:
		t.line("lose %s", id)
	case doKillDaemon:
		t.line("kill-daemon %s", id)
		t.line("grace-over %s", id)
	case doExpire:
		t.line("expire %s", id)
	case doBreak:
		t.line("heal-broken %s", id)
	}
	if acts != "" {
		t.line("do%s %s", acts, id)
	}
	// What was done at once.
	c := *w
	d := &doing{x: t.explorer, world: &c}
	d.do(e)
	if len(d.did) > 0 {
		t.line("do %s %s", strings.Join(d.did, " "), id)
	}
}

// goOn tells how faults end, after which nothing more is done from outside.
func (t *teller) goOn(w *world, same bool) {
	d := &doing{x: t.explorer, world: w}
	if !same {
		t.line("elect")
	}
	for i, l := range w.lives {
		if l == nil {
			if w.state().World.Generation.IsZero() && i < t.Members {
				t.line("start %s", t.names[i])
			}
			continue
		}
		if m := w.state().Member(t.names[i]); m != nil && m.Quarantine {
			t.line("lift %s", t.names[i])
		}
		if l.expired {
			t.line("renew %s", t.names[i])
		}
		switch {
		case d.unborn(l) || l.lost || l.fenced || l.ended:
			t.line("start %s", t.names[i])
		case l.machine == nil:
			t.line("restart %s", t.names[i])
		}
	}
	t.line("run to %d", w.newest()+1)
}

func (t *teller) hear(w *world, i uint8, o int, step phalanx.Step) {
	t.line("hear %s %s %d %s", t.names[o], w.lives[i].machine.Log().World.Generation, step, t.names[i])
}

func (t *teller) blindly(arg uint8) string {
	if arg&blind != 0 {
		return "-blind"
	}
	return ""
}
