// SPDX-License-Identifier: Apache-2.0

// Package client is the Go library inside a training process. It talks to the member's daemon over one socket call at the
// start and over the control page afterwards; a healthy step makes no socket call.
//
//	c, err := client.Dial(ctx)
//	err = c.Hello(ctx, client.Config{Spec: spec, State: tensors, GradientElements: n, Apply: optimizer})
//	for {
//		b, err := c.Begin(ctx)                      // ErrDone: leave the loop
//		fold := c.Fold()
//		for slot := b.Slots.First; slot < b.Slots.End; slot++ {
//			c.Working(b.Step, slot)
//			backward(b.Step, slot, fold.Slot(slot)) // adds into zeroed memory
//			fold.Done(slot)
//		}
//		gradient, err := c.AllReduce(ctx, true)     // phalanx.ErrRevoked: call Begin again
//		committed, err := c.Vote(ctx, client.Vote{OK: true, Digest: c.GradientDigest(gradient)})
//		if committed {
//			err = c.Apply()                         // an error: the process must exit
//		}
//	}
//	err = c.Finish(ctx, digest)                     // ErrRepeat: back into the loop
//
// # The trainer's machine
//
//	          ┌────────────── park: wait, serve heals, stage saves ─────────────┐
//	Begin ──▶ seat ── run, label fits ──▶ compute ──▶ AllReduce ──▶ Vote ──▶ Apply ──▶ Begin
//	          │  └─── commit of a held gradient (roll forward): Apply, then look again
//	          ├────── heal: void, fill, verify, label, look again
//	          └────── stop: ErrDone or ErrPreempted; fenced: ErrFenced
//
// Roll forward and commit are one operation; it is refused unless the state stands whole at the step before. A repeat is
// nothing but another Begin.
//
// # Threads
//
// All methods are for one goroutine, the owner, except Progress and Working, which may be called from one other at a time.
// While the owner waits in a method, the library serves heals from the registered memory and starts the staging of saves.
// Staging runs in one goroutine beside the computation; it reads the registered memory and has ended before the optimizer
// runs or a heal writes. Close ends it.
//
// # Waits
//
// Every wait ends with its context, and with ErrOrphaned when no daemon has lived for OrphanAfter. The daemon holds the
// deadlines of a step: it revokes, parks, stops or fences, and each of these ends every wait but a park.
package client
