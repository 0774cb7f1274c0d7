// SPDX-License-Identifier: Apache-2.0

package node

import (
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// metrics serves this daemon's numbers. They are read from the newest view, so that a scrape costs the loop nothing.
func (d *Daemon) metrics() http.Handler {
	reg := prometheus.NewRegistry()
	gauge := func(name, help string, value func(*Status) float64) {
		reg.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help, ConstLabels: prometheus.Labels{"job": d.cfg.Job, "member": string(d.me())}}, func() float64 {
			if v := d.view.Load(); v != nil {
				return value(v)
			}
			return 0
		}))
	}
	gauge("phalanx_generation", "Number of the current generation.", func(v *Status) float64 { return float64(v.Generation) })
	gauge("phalanx_committed_step", "Newest step known to be committed.", func(v *Status) float64 { return float64(v.Step) })
	gauge("phalanx_world_size", "Ranks in the world.", func(v *Status) float64 { return float64(len(v.World)) })
	gauge("phalanx_deal_efficiency_ratio", "Share of ideal speed that the deal of slots reaches.", func(v *Status) float64 { return v.Efficiency })
	gauge("phalanx_raft_commit_index", "Commit index of the log.", func(v *Status) float64 { return float64(v.Raft.Commit) })
	gauge("phalanx_raft_term", "Term of the log.", func(v *Status) float64 { return float64(v.Raft.Term) })
	gauge("phalanx_leading", "1 while this daemon leads.", func(v *Status) float64 {
		if v.Fresh {
			return 1
		}
		return 0
	})
	gauge("phalanx_published_step", "Step of the newest published checkpoint.", func(v *Status) float64 {
		if v.Published == nil {
			return 0
		}
		return float64(v.Published.Step)
	})
	return promhttp.HandlerFor(reg, promhttp.HandlerOpts{})
}
