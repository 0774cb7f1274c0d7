// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"strings"
	"time"

	"phalanx"
	"phalanx/client"
	"phalanx/kernels"
	"phalanx/node"
)

// width is the number of parameters of the toy model.
const width = 9

// toy is the training state: parameters, momentum and the number of updates.
type toy struct {
	weights, momentum []float32
	count             []int64
}

func newToy() toy {
	t := toy{make([]float32, width), make([]float32, width), make([]int64, 1)}
	for i := range t.weights {
		t.weights[i] = float32(i)/8 - 0.5
	}
	return t
}

func (t toy) tensors() []kernels.Tensor {
	return []kernels.Tensor{
		{Name: "weights", DType: "f32", Shape: []int{width}, Data: kernels.Bytes(t.weights)},
		{Name: "momentum", DType: "f32", Shape: []int{width}, Data: kernels.Bytes(t.momentum)},
		{Name: "count", DType: "i64", Shape: []int{1}, Data: kernels.Bytes(t.count)},
	}
}

// gradient adds the gradient of one slot: a function of the step, the slot and the weights, whose sums round.
func (t toy) gradient(into []float32, step phalanx.Step, slot phalanx.Slot) {
	for i := range into {
		x := uint64(step)*0x9e3779b97f4a7c15 + uint64(slot)*0xbf58476d1ce4e5b9 + uint64(i)*0x94d049bb133111eb
		x ^= x >> 31
		x *= 0xd6e8feb86659fd93
		x ^= x >> 32
		noise := float32(x>>40)/(1<<23) - 1
		into[i] += noise + t.weights[i]*0.01
	}
}

func (t toy) update(gradient []float32) {
	for i, g := range gradient {
		m := t.momentum[i] * 0.9
		t.momentum[i] = m + g
		step := t.momentum[i] * 0.05
		t.weights[i] -= step
	}
	t.count[0]++
}

// bits tell two states apart.
func (t toy) bits() string {
	var b strings.Builder
	for _, v := range [][]float32{t.weights, t.momentum} {
		for _, f := range v {
			fmt.Fprintf(&b, "%08x", math.Float32bits(f))
		}
	}
	fmt.Fprintf(&b, "%d", t.count[0])
	return b.String()
}

// undisturbed is the state after each step of a run that nobody disturbs, from step 0.
func undisturbed(spec phalanx.JobSpec) []string {
	t := newToy()
	out := []string{t.bits()}
	tree := phalanx.SlotTree{Slots: spec.Slots}
	for step := phalanx.Step(1); step <= spec.LastStep; step++ {
		var sum func(n phalanx.Node) []float32
		sum = func(n phalanx.Node) []float32 {
			g := make([]float32, width)
			if n.Len() == 1 {
				t.gradient(g, step, n.First)
				return g
			}
			left, right := tree.Children(n)
			kernels.AddF32(g, sum(left), sum(right))
			return g
		}
		g := sum(tree.Root())
		kernels.ScaleF32(g, g, 1/float32(spec.Slots))
		t.update(g)
		out = append(out, t.bits())
	}
	return out
}

// startTrainer starts a training process beside a daemon that asks for one.
func (c *cluster) startTrainer(h *host, cmd node.Command, exited func(how string, code int)) *process {
	env := map[string]string{}
	for _, e := range cmd.Env {
		k, v, _ := strings.Cut(e, "=")
		env[k] = v
	}
	p := h.fork("T" + env["PHALANX_MEMBER"])
	c.trace.add(p.name, "starts, pid %d", p.pid)
	c.ends.Go(func() {
		how, code := "killed by signal 9 (killed)", 137
		defer func() { // also when the process was killed at a wait
			c.trace.add(p.name, "pid %d ends: %s", p.pid, how)
			h.reap(p)
			exited(how, code)
		}()
		err := c.train(p, phalanx.MemberID(env["PHALANX_MEMBER"]), env[client.SocketVariable])
		switch {
		case p.dead():
		case errors.Is(err, client.ErrPreempted):
			how, code = "exited with status 75", 75
		case err != nil:
			how, code = fmt.Sprintf("exited with status 1 (%v)", err), 1
		default:
			how, code = "exited with status 0", 0
		}
	})
	return p
}

// train is the main function of a trainer.
func (c *cluster) train(p *process, member phalanx.MemberID, socket string) error {
	mem := &memory{HeapMemory: p.host.memory(), proc: p, trainer: true}
	proc := client.Process{
		PID: p.pid, Start: p.start, Memory: mem,
		Dial: func(ctx context.Context) (net.Conn, error) {
			return c.wires.dial(ctx, p, socket, p.host, &net.UnixAddr{Net: "unix"})
		},
		Alive:      system{p.host, p}.Alive,
		BoottimeNS: system{p.host, p}.BoottimeNS,
	}
	cl, err := proc.DialDaemon(p.ctx)
	if err != nil {
		return err
	}
	defer cl.Close()
	t := &trainer{cluster: c, proc: p, member: member, mem: mem, cl: cl, toy: newToy()}
	err = cl.Hello(p.ctx, client.Config{
		Spec: c.spec, State: t.toy.tensors(), GradientElements: width, Apply: t.apply, Logger: c.trace.logger(p.name, c.o.Level),
	})
	if err != nil {
		return err
	}
	for {
		b, err := cl.Begin(p.ctx)
		if errors.Is(err, client.ErrDone) {
			err = cl.Finish(p.ctx, kernels.Digest(c.spec.Seed, t.toy.tensors()))
			if errors.Is(err, client.ErrRepeat) {
				continue
			}
			return err
		}
		if err != nil {
			return err
		}
		if err := t.step(b); err != nil && !errors.Is(err, phalanx.ErrRevoked) {
			return err
		}
	}
}

type trainer struct {
	cluster  *cluster
	proc     *process
	member   phalanx.MemberID
	mem      *memory
	cl       *client.Client
	toy      toy
	held     []float32 // the reduced gradient of a step
	heldStep phalanx.Step
}

func (t *trainer) step(b client.Begin) error {
	l := t.cluster.ledger
	seat, _ := t.mem.own().ReadSeat()
	l.began(t.member, b, seat)
	fold := t.cl.Fold()
	for slot := b.Slots.First; slot < b.Slots.End; slot++ {
		t.cl.Working(b.Step, slot)
		t.proc.sleep(t.cluster.slotTime)
		t.toy.gradient(fold.Slot(slot), b.Step, slot)
		fold.Done(slot)
		l.computed(t.member, b, slot)
	}
	t.held = nil
	g, err := t.cl.AllReduce(t.proc.ctx, true)
	if err != nil {
		return err
	}
	t.held, t.heldStep = g, b.Step
	committed, err := t.cl.Vote(t.proc.ctx, client.Vote{OK: true, Digest: t.cl.GradientDigest(g)})
	if err != nil || !committed {
		return err
	}
	return t.cl.Apply()
}

// apply is the optimizer. What it makes is checked at once.
func (t *trainer) apply(step phalanx.Step) error {
	if t.held == nil || t.heldStep != step {
		return fmt.Errorf("apply step %d: no gradient of it is held", step)
	}
	page := t.mem.own()
	applying, _ := page.ReadApplying()
	gradient, _ := page.ReadGradient()
	t.toy.update(t.held)
	t.cluster.ledger.applied(t.member, step, applying.Generation, gradient.Digest, t.toy.bits())
	t.held = nil
	t.proc.must() // killed between the update and its label
	return nil
}

// slotTimes spread the steps over the simulated time.
const defaultSlotTime = 20 * time.Millisecond
