// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"phalanx"
	"phalanx/ckpt"
	"phalanx/ckpt/storewrap"
	"phalanx/elastic"
)

// meters are a daemon's numbers for /metrics. What status says is read from the newest view, so that a scrape costs the loop
// nothing; what happens is counted where it happens.
type meters struct {
	registry    *prometheus.Registry
	steps       prometheus.Histogram
	transitions *prometheus.HistogramVec
	healed      *prometheus.CounterVec
	heals       prometheus.Histogram
	published   prometheus.Counter
	unpublished prometheus.Counter
	takeovers   prometheus.Counter
	skipped     *prometheus.CounterVec
	evidence    *prometheus.CounterVec
	starts      prometheus.Counter
	store       *prometheus.HistogramVec
	storeBytes  *prometheus.CounterVec
}

// parts are bounds for what should take milliseconds and may take minutes.
var parts = []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300}

func newMeters(job string, member phalanx.MemberID, view func() *Status) *meters {
	labels := prometheus.Labels{"job": job, "member": string(member)}
	m := &meters{registry: prometheus.NewRegistry()}
	histogram := func(name, help string) prometheus.HistogramOpts {
		return prometheus.HistogramOpts{Name: name, Help: help, ConstLabels: labels, Buckets: parts}
	}
	counter := func(name, help string) prometheus.CounterOpts {
		return prometheus.CounterOpts{Name: name, Help: help, ConstLabels: labels}
	}
	m.steps = prometheus.NewHistogram(histogram("phalanx_step_duration_seconds", "Time between two steps that the own trainer applied."))
	m.transitions = prometheus.NewHistogramVec(histogram("phalanx_transition_duration_seconds", "Parts of the changes of the world."), []string{"part"})
	m.healed = prometheus.NewCounterVec(counter("phalanx_heal_bytes_total", "State read from or served to members."), []string{"direction"})
	m.heals = prometheus.NewHistogram(histogram("phalanx_heal_duration_seconds", "Time that the own trainer took to heal."))
	m.published = prometheus.NewCounter(counter("phalanx_checkpoint_published_total", "Checkpoints published by this daemon as the leader."))
	m.unpublished = prometheus.NewCounter(counter("phalanx_checkpoint_failed_total", "Saves that this daemon, as the leader, could not publish."))
	m.takeovers = prometheus.NewCounter(counter("phalanx_checkpoint_takeovers_total", "Shares of saves that this daemon, as the leader, gave to another member."))
	m.skipped = prometheus.NewCounterVec(counter("phalanx_checkpoint_skipped_total", "Saves that were not begun at their step, counted by this daemon as the leader."), []string{"reason"})
	for _, why := range []skipReason{saveBusy, saveFailing, saveMissed} {
		m.skipped.WithLabelValues(string(why)) // served from the start
	}
	m.evidence = prometheus.NewCounterVec(counter("phalanx_evidence_total", "Evidence in changes of the world."), []string{"kind"})
	m.starts = prometheus.NewCounter(counter("phalanx_trainer_starts_total", "Starts of the member's trainer."))
	m.store = prometheus.NewHistogramVec(histogram("phalanx_store_operation_duration_seconds", "Requests to the checkpoint store, each try by itself."), []string{"verb", "outcome"})
	m.storeBytes = prometheus.NewCounterVec(counter("phalanx_store_bytes_total", "Bytes of objects that were written to or read from the checkpoint store."), []string{"verb"})
	m.registry.MustRegister(m.store, m.storeBytes, m.steps, m.transitions, m.healed, m.heals, m.published, m.unpublished, m.takeovers, m.skipped, m.evidence, m.starts)
	// What the process itself costs: memory, goroutines, descriptors, threads. A soak run looks for what grows.
	prometheus.WrapRegistererWith(labels, m.registry).MustRegister(collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	gauge := func(name, help string, value func(*Status) float64) {
		m.registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help, ConstLabels: labels}, func() float64 {
			if v := view(); v != nil {
				return value(v)
			}
			return 0
		}))
	}
	gauge("phalanx_generation", "Number of the newest generation read.", func(v *Status) float64 { return float64(v.Generation) })
	gauge("phalanx_committed_step", "Newest step known to be committed.", func(v *Status) float64 { return float64(v.Step) })
	gauge("phalanx_world_ranks", "Ranks in the world.", func(v *Status) float64 { return float64(len(v.World)) })
	gauge("phalanx_deal_efficiency_ratio", "Share of ideal speed that the deal of slots reaches.", func(v *Status) float64 { return v.Efficiency })
	gauge("phalanx_log_index", "Newest applied index of the log.", func(v *Status) float64 { return float64(v.Raft.Applied) })
	gauge("phalanx_log_term", "Term of the log.", func(v *Status) float64 { return float64(v.Raft.Term) })
	gauge("phalanx_is_leader", "1 on the leader.", func(v *Status) float64 {
		if v.Fresh {
			return 1
		}
		return 0
	})
	saves := func(value func(*SavesStatus) float64) func(*Status) float64 {
		return func(v *Status) float64 {
			if v.Saves == nil {
				return 0
			}
			return value(v.Saves)
		}
	}
	gauge("phalanx_recovery_point_age_seconds", "Age of the newest durable state, or of this run before the first one.", saves(func(v *SavesStatus) float64 { return v.Age }))
	gauge("phalanx_checkpoint_failures", "Saves in a row that have failed.", saves(func(v *SavesStatus) float64 { return float64(v.Failures) }))
	gauge("phalanx_published_step", "Step of the newest published checkpoint.", func(v *Status) float64 {
		if v.Published == nil {
			return 0
		}
		return float64(v.Published.Step)
	})
	return m
}

// transition counts what a new state says about the changes of the world since the old one.
func (m *meters) transition(old, now *elastic.State) {
	if now.World.Generation != old.World.Generation && len(now.Transitions) > 0 {
		for _, e := range now.Transitions[len(now.Transitions)-1].Evidence {
			m.evidence.WithLabelValues(string(e.Kind)).Inc()
		}
	}
	if !now.Activated || old.Activated && old.World.Generation == now.World.Generation || len(now.Transitions) == 0 {
		return
	}
	if s := now.Transitions[len(now.Transitions)-1].Seconds; s != nil {
		for part, seconds := range map[string]float64{"detect": s.Detect, "agree": s.Agree, "seal": s.Seal, "form": s.Form, "heal": s.Heal, "first_step": s.FirstStep} {
			m.transitions.WithLabelValues(part).Observe(seconds)
		}
	}
}

// step counts the time between two steps.
func (m *meters) step(d time.Duration) { m.steps.Observe(d.Seconds()) }

// Observe implements storewrap.Observer.
func (m *meters) Observe(s storewrap.Sample) {
	outcome := "failed"
	switch {
	case s.Err == nil:
		outcome = "ok"
	case errors.Is(s.Err, ckpt.ErrConflict):
		outcome = "unknown"
	case errors.Is(s.Err, ckpt.ErrUnavailable):
		outcome = "unavailable"
	case errors.Is(s.Err, ckpt.ErrExists), errors.Is(s.Err, ckpt.ErrNotFound):
		outcome = "refused" // an answer like another
	}
	m.store.WithLabelValues(string(s.Verb), outcome).Observe(s.Took.Seconds())
	m.storeBytes.WithLabelValues(string(s.Verb)).Add(float64(s.Bytes))
}

func (m *meters) handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{})
}
