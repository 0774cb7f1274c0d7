// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"fmt"
	"slices"

	"phalanx"
	"phalanx/client/wire"
)

// addSecondSlab lets the next state be staged while one is written to the store. Without it everything goes on, with one save at a
// time.
func (d *Daemon) addSecondSlab(l *life, h *wire.Hello) {
	if d.cfg.Slabs < 2 {
		return
	}
	admitted := l.needs(h)
	err := d.memory.grow(admitted, partSlab, l.slabBytes())
	switch {
	case h.Slabs < 2:
		err = errors.New("the trainer's client has no use for it: it is of an older release")
	case err == nil:
		if err = l.addSlab(d.paths, d.cfg.Index, l.slabs[0].Layout()); err == nil {
			return
		}
	}
	d.memory.set(partSlab, admitted[partSlab])
	l.oneSlab = "no second slab: " + err.Error()
	d.log.Warn("one save is under way at a time", "error", l.oneSlab)
}

// oneSlabs says which members stage into one slab although two were asked for, and why: the own one and, from the leader, all.
func (d *Daemon) oneSlabs() []string {
	whys := map[phalanx.MemberID]string{}
	if d.life != nil {
		whys[d.me()] = d.life.oneSlab
	}
	if d.lead != nil {
		for id, v := range d.lead.members {
			if v.report != nil && v.conn != nil {
				whys[id] = v.report.OneSlab
			}
		}
	}
	var out []string
	for id, why := range whys {
		if why != "" {
			out = append(out, fmt.Sprintf("one save is under way at a time, because %s has %s", id, why))
		}
	}
	slices.Sort(out)
	return out
}
