// SPDX-License-Identifier: Apache-2.0

package node

// wake makes the loop look. It may be called from any goroutine, also while and after the daemon ends.
func (d *Daemon) wake() {
	d.ringing.RLock()
	defer d.ringing.RUnlock()
	if d.bell != nil && !d.silent {
		d.bell.Ring()
	}
}

// silence lets nobody ring any more: a handler of a closed server may still run, and a timer may still fire.
func (d *Daemon) silence() {
	d.ringing.Lock()
	defer d.ringing.Unlock()
	d.silent = true
}

// post hands work to the loop; it is dropped when the daemon is ending.
func (d *Daemon) post(f func()) {
	select {
	case d.posts <- f:
		d.wake()
	case <-d.ctx.Done():
	}
}

// forward brings what comes by channels to the loop, which sleeps on its bell. All of it is rare.
func (d *Daemon) forward() {
	for {
		select {
		case <-d.ctx.Done():
			d.wake()
			return
		case l := <-d.raft.LeaderChanges():
			d.post(func() { d.leadershipChanged(l.IsSelf, l.Term) })
		case x := <-d.procs.Exits():
			d.post(func() { d.processExited(x) })
		case h := <-d.hints():
			d.post(func() { d.hinted(h) })
		case err := <-d.raft.Failed():
			d.post(func() { d.broken = logProblem(err) })
		}
	}
}
