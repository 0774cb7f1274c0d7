// SPDX-License-Identifier: Apache-2.0

package explore

import (
	"encoding/binary"
	"slices"

	"phalanx"
	"phalanx/elastic"
)

// orders are the permutations of n members, the identity first.
func orders(n int, distinct bool) [][]int {
	if distinct {
		one := make([]int, n)
		for i := range one {
			one[i] = i
		}
		return [][]int{one}
	}
	var all [][]int
	var extend func([]int)
	extend = func(p []int) {
		if len(p) == n {
			all = append(all, slices.Clone(p))
			return
		}
		for i := range n {
			if !slices.Contains(p, i) {
				extend(append(p, i))
			}
		}
	}
	extend(nil)
	return all
}

// keyed makes keys. It belongs to one goroutine.
type keyed struct {
	x    *explorer
	own  [maxMembers][]byte
	sign [maxMembers]hash
	b    []byte
	// target is the step that a world is to reach without further faults, or noTarget: then what bounds the exploration counts.
	target phalanx.Step
	events []event
}

// key is equal for two worlds that go on alike, whatever their members are called. The world must be refreshed.
func (k *keyed) key(w *world) hash {
	x := k.x
	k.b = k.shared(k.b[:0], w)
	fixed := len(k.b)
	oldest := w.oldest()
	for i := range x.Members {
		k.own[i] = w.member(k.own[i][:0], i, oldest)
		if len(x.orders) > 1 {
			k.sign[i] = sum(k.own[i])
		}
	}
	var best hash
	first := true
order:
	for n, order := range x.orders {
		for j := 1; j < len(order); j++ {
			if len(x.orders) > 1 && k.sign[order[j]].less(k.sign[order[j-1]]) {
				continue order
			}
		}
		k.b = k.named(k.b[:fixed], w, n)
		if h := sum(k.b); first || h.less(best) {
			best, first = h, false
		}
	}
	return best
}

// member appends what a member is without naming anybody: its life, and how far it is behind the log.
func (w *world) member(b []byte, i int, oldest phalanx.Generation) []byte {
	l := w.lives[i]
	if l == nil {
		return append(b, 0xff)
	}
	b = l.sig.append(b)
	for _, v := range w.ballots[i] {
		if !v.Generation.Less(oldest) {
			b = v.AppendKey(b)
		}
	}
	b = append(b, 0)
	if l.over() {
		return b
	}
	behind := byte(0)
	for n := w.head; n != l.at; n = n.prev {
		if n.relevant {
			behind++
		}
	}
	return append(b, behind)
}

// oldest is the oldest generation that a machine may still hear votes of.
func (w *world) oldest() phalanx.Generation {
	g := w.state().World.Generation
	for _, l := range w.lives {
		if l != nil && !l.over() {
			if x := l.at.state.World.Generation; x.Less(g) {
				g = x
			}
		}
	}
	return g
}

// shared appends what is nobody's own.
func (k *keyed) shared(b []byte, w *world) []byte {
	flags := byte(0)
	if w.round.Asked {
		flags |= 1
	}
	if w.round.Planned {
		flags |= 2
	}
	b = append(b, flags, byte(w.round.Boundary), byte(len(w.stored)))
	for i := range w.stored {
		b = elastic.AppendLabel(b, w.stored[i].Labels[0])
		for _, h := range w.stored[i].history[:k.x.Group] {
			b = appendHistory(b, h)
		}
	}
	b = append(b, byte(len(w.decided)))
	for _, x := range w.decided {
		b = append(b, byte(x.step), byte(x.coordinate), byte(x.what), byte(x.what>>8))
	}
	b = append(b, byte(len(w.rewinds)))
	for _, r := range w.rewinds {
		b = append(b, byte(r.Generation.Number), byte(r.Source))
	}
	if k.target != noTarget {
		return append(b, byte(k.target))
	}
	return append(b, w.faults, w.formed, w.wishes, w.reached)
}

func appendHistory(b []byte, h [maxSteps + 1]lab) []byte {
	for _, x := range h[1:] {
		if x == 0 {
			break
		}
		b = binary.AppendUvarint(b, uint64(x))
	}
	return append(b, 0)
}

// over reports whether nothing of this life is left to do anything.
func (l *life) over() bool { return l.lost || l.fenced || l.ended }

// refresh makes the keys of a life that was changed.
func (l *life) refresh(x *explorer, b []byte) []byte {
	flags := [2]byte{}
	for n, on := range []bool{l.machine == nil, l.lost, l.fenced, l.ended, l.done, l.quit, l.expired, l.heal != nil} {
		if on {
			flags[0] |= 1 << n
		}
	}
	for n, on := range []bool{l.mixed, l.asked, l.answer != nil, l.torn} {
		if on {
			flags[1] |= 1 << n
		}
	}
	b = append(b[:0], byte(l.me.Incarnation), flags[0], flags[1])
	if l.answer != nil {
		b = l.answer.AppendKey(b)
	}
	if l.over() {
		l.sig = sum(b)
	} else {
		l.sig = sum(l.rest(b))
	}
	for i := range l.heard {
		l.heard[i], l.told[i] = 0, 0
	}
	if !l.over() && l.machine != nil {
		log := l.machine.Log()
		for i, id := range x.names {
			if seat := log.World.SeatOf(id); seat != nil {
				if v := l.machine.Heard(seat.Rank); v.Step > 0 {
					b = v.AppendKey(b[:0])
					l.heard[i] = sum(b)[0]
				}
			}
		}
	}
	if len(l.evidence) > 0 {
		for i := range x.names {
			b = elastic.AppendEvidence(b[:0], l.evidence, x.names[i:i+1])
			if len(b) > 1 {
				l.told[i] = sum(b)[0]
			}
		}
	}
	if r := l.page.Refused; l.machine == nil && !l.over() && r.Step > 0 {
		if log := l.at.state.State; log.World.Generation == r.Generation && int(r.Who) < log.World.Size() {
			e := phalanx.Evidence{Kind: r.Why, About: log.World.Seats[r.Who].Incarnate, Step: r.Step}
			for i := range x.names {
				if b = elastic.AppendEvidence(b[:0], []phalanx.Evidence{e}, x.names[i:i+1]); len(b) > 1 {
					l.told[i] ^= sum(b)[1]
				}
			}
		}
	}
	b = append(b[:0], byte(l.me.Incarnation), flags[0])
	if l.machine != nil {
		b = append(b, byte(l.machine.Sealed().Number))
	}
	t := elastic.Trainer{Possession: l.trainer.Possession}
	b = t.AppendKey(b, phalanx.Generation{})
	if l.answer != nil {
		b = l.answer.AppendKey(b)
	}
	for _, x := range l.told {
		b = binary.LittleEndian.AppendUint64(b, x)
	}
	l.fact = sum(b)
	return b
}

// rest appends what a life does next.
func (l *life) rest(b []byte) []byte {
	at := l.at.state.World.Generation
	switch {
	case l.machine != nil:
		b = l.machine.AppendKey(b)
		b = append(b, byte(l.forming.Number), byte(l.leaving.Number))
	default:
		b = l.trainer.AppendKey(b, at)
		b = appendPage(b, &l.page, at)
	}
	b = appendHistory(b, l.history)
	if l.promised.Less(at) {
		return append(b, 0)
	}
	return append(b, byte(l.promised.Number))
}

// appendPage appends what of a page can still matter in generation g.
func appendPage(b []byte, p *elastic.Page, g phalanx.Generation) []byte {
	flags := byte(0)
	if !p.Sealed.Less(g) {
		flags |= 1
	}
	if !p.Vote.Generation.Less(g) {
		flags |= 2
	}
	if !p.Refused.Generation.Less(g) {
		flags |= 4
	}
	b = append(b, flags)
	if flags&1 != 0 {
		b = append(b, byte(p.Sealed.Number))
	}
	if flags&2 != 0 {
		b = p.Vote.AppendKey(b)
	}
	if flags&4 != 0 {
		b = append(b, byte(p.Refused.Step))
	}
	return append(b, byte(p.Told.Generation.Number), byte(p.Told.Step))
}

// named appends what names members, in an order.
func (k *keyed) named(b []byte, w *world, n int) []byte {
	x := k.x
	order := x.orders[n]
	for _, i := range order {
		b = append(b, k.own[i]...)
		l := w.lives[i]
		if l == nil {
			continue
		}
		for _, j := range order {
			b = binary.LittleEndian.AppendUint64(b, l.heard[j])
		}
		if l.told != [maxMembers]uint64{} {
			b = append(b, 1)
			for _, j := range order {
				b = binary.LittleEndian.AppendUint64(b, l.told[j])
			}
		}
		b = append(b, 0xfe)
	}
	b = w.head.state.key[n].append(b)
	// What is still to be read, as far back as somebody stands.
	oldest := w.head.index
	for _, l := range w.lives {
		if l != nil && !l.over() {
			oldest = min(oldest, l.at.index)
		}
	}
	for at := w.head; at != nil; at = at.prev {
		if at.relevant || at.index <= oldest {
			b = at.state.view[n].append(b)
			if at.index <= oldest {
				break
			}
		}
	}
	b = append(b, byte(len(w.drafts)))
	if len(w.drafts) > 0 {
		keys := make([]hash, len(w.drafts))
		for i, d := range w.drafts {
			keys[i] = d.key[n]
		}
		slices.SortFunc(keys, func(a, b hash) int {
			if a.less(b) {
				return -1
			}
			return 1
		})
		for _, h := range keys {
			b = h.append(b)
		}
	}
	return b
}
