// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"time"

	"phalanx/elastic"
)

func (v *memberView) reply(d *Daemon, r *Reply) {
	if v.conn != nil {
		v.conn.send(&Message{Reply: r})
	} else if v.local {
		d.replied(r)
	}
}

// request carries out an operator's wish.
func (a *arbiter) request(r *Request, reply func(string)) {
	var c elastic.Command
	switch {
	case r.Drain != "":
		c = elastic.Drain{Member: r.Drain, Why: r.Why}
	case r.Resize > 0:
		c = elastic.Resize{Want: r.Resize}
	case r.Stop:
		a.stop = true
		reply("")
		return
	default:
		reply("nothing was asked for")
		return
	}
	b, err := elastic.EncodeCommand(c)
	if err != nil {
		reply(err.Error())
		return
	}
	d := a.d
	d.ends.Go(func() {
		ctx, cancel := context.WithTimeout(d.ctx, 5*time.Second)
		defer cancel()
		res, err := d.raft.Propose(ctx, b)
		words := ""
		if err != nil {
			words = err.Error()
		} else if x, refused := res.Response.(refusal); refused {
			words = x.err.Error()
		}
		d.post(func() { reply(words) })
	})
}
