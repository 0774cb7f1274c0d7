// SPDX-License-Identifier: Apache-2.0

package node

import (
	"testing"

	"phalanx"
	"phalanx/client/wire"
	"phalanx/collective/host"
	"phalanx/elastic"
)

// lone is a daemon without a leader whose member is alone in the world of a generation, formed and with a lease.
func lone(t *testing.T) *Daemon {
	t.Helper()
	who := incarnate("h", 0, 1)
	d := &Daemon{cfg: Config{Host: "h", LocalSize: 1}, log: quiet(), ctx: t.Context(), paths: NewPaths(t.TempDir(), t.TempDir()).in(wire.NewHeapMemory()),
		siblings: make([]*sibling, 1), posts: make(chan func(), 16), engine: host.New(quiet(), host.Options{})}
	t.Cleanup(d.engine.Close)
	d.meters = newMeters("job", who.Member, d.view.Load)
	d.bells, _ = d.paths.memory.Bells("bells")
	d.saver, d.peers, d.kv = newSaver(d), newPeerLinks(d), newStores(d)
	g := phalanx.Generation{Number: 1}
	d.state = elastic.NewState()
	d.state.Spec = &phalanx.JobSpec{LastStep: 9, Slots: 1, GlobalBatch: 1, GroupSize: 1}
	d.state.Phase, d.state.Floor = elastic.Forming, elastic.InitialFloor(1)
	d.state.Members = []elastic.Member{{Incarnate: who, State: elastic.Active}}
	d.state.World = phalanx.World{Generation: g, GroupSize: 1, SlotCount: 1, Seats: []phalanx.Seat{{Incarnate: who, Slots: phalanx.SlotRange{End: 1}}}}
	d.life = begin(t, d.paths, 0, who)
	d.life.helloPID, d.life.helloStart = selfProcess()
	d.life.page.WriteApplied(wire.Applied{Coordinate: wire.AnyCoordinate, Valid: true, TrainerStart: d.life.helloStart})
	d.life.machine = elastic.NewMachine(who, d.state, elastic.Page{})
	d.life.seen = d.life.readTrainer()
	d.life.machine.Adopt(d.life.seen)
	d.life.machine.Step(elastic.Formed{Generation: g})
	d.lease = wire.BoottimeNS() + int64(leaseLength)
	d.setLease()
	return d
}

// request asks for a vote like a trainer that holds the gradient.
func request(d *Daemon, step phalanx.Step) {
	g, start := d.state.World.Generation, d.life.helloStart
	d.life.page.WriteGradient(wire.Gradient{Generation: g, Step: step, TrainerStart: start})
	d.life.page.WriteVoteRequest(wire.VoteRequest{Generation: g, Step: step, OK: true, TrainerStart: start})
}

// A daemon that wakes after its lease has run out reads its trainer's request first: it looks at its lease before it votes.
func TestNoVoteAfterALeaseThatRanOutUnseen(t *testing.T) {
	d := lone(t)
	request(d, 1)
	d.lease = wire.BoottimeNS() - 1
	d.scan()
	if v, n := d.life.page.ReadVote(); n != 0 {
		t.Errorf("voted %+v without a lease", v)
	}
	d.lease = wire.BoottimeNS() + int64(leaseLength)
	d.setLease()
	if v, n := d.life.page.ReadVote(); n == 0 || v.Step != 1 || !v.OK {
		t.Errorf("vote %+v, %d, when the lease is back", v, n)
	}
}

// The leader that heard of the first step may die before it writes that down: the next one is told again, until the log says so.
func TestTheNextLeaderHearsOfTheFirstStep(t *testing.T) {
	d := lone(t)
	d.up = &upstream{d: d, queue: make(chan *Message, 4), connected: true}
	d.reportFirst()
	if len(d.up.queue) != 0 {
		t.Error("told of a first step that is not made")
	}
	d.execute(elastic.FirstStep{Generation: d.state.World.Generation, Step: 1})
	d.reportFirst()
	for range 2 {
		if m := <-d.up.queue; m.First == nil || m.First.Generation != d.state.World.Generation || m.First.StepNS == 0 {
			t.Errorf("told %+v", m)
		}
	}
	d.state.Phase = elastic.Running
	if d.reportFirst(); len(d.up.queue) != 0 {
		t.Error("told of what is in the log")
	}
}

// A donor that goes on between the look at its label and its copy has copied another state.
func TestServeRefusesAStateThatMovedOn(t *testing.T) {
	for _, moves := range []bool{false, true} {
		d := lone(t)
		l, g, start := d.life, d.state.World.Generation, d.life.helloStart
		l.segment, _ = d.paths.memory.CreateRegion("segment", ringBytes)
		d.peers.serving.fence(g)
		before := wire.Applied{Step: 1, Generation: g, Valid: true, TrainerStart: start}
		l.page.WriteApplied(before)
		done := make(chan struct{})
		go func() { // the trainer
			defer close(done)
			for i := 0; ; i = (i + 1) % wire.ServeCount {
				r, n := l.page.ReadServe(i)
				if n == 0 {
					continue
				}
				if moves {
					l.page.WriteApplied(wire.Applied{Step: 2, Generation: g, Valid: true, TrainerStart: start})
				}
				l.page.SetServed(i, wire.Answer(r.Sequence, wire.StatusOK))
				d.peers.serving.moved()
				return
			}
		}()
		used := false
		err := d.peers.serving.ask(brief(t), wire.Serve{Generation: g, Kind: wire.ServeKindRead, Length: 8}, before.Label(), func([]byte) error { used = true; return nil })
		<-done
		if used == moves || (err != nil) != moves {
			t.Errorf("moves %v: used %v, %v", moves, used, err)
		}
	}
}
