// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"phalanx/ckpt"
	"phalanx/ckpt/fs"
	"phalanx/ckpt/open"
	"phalanx/ckpt/storewrap"
	"phalanx/node"
)

// newStore are the verbs about stores, whatever they hold.
func newStore(a *app) *cobra.Command {
	c := &cobra.Command{Use: "store", Short: "Try out where checkpoints are kept", Args: cobra.NoArgs, RunE: group}
	c.AddCommand(newStoreProbe(a))
	return c
}

// probeTimeout bounds a whole trial.
const probeTimeout = 30 * time.Second

// probeVerb is store probe.
type probeVerb struct {
	*app
	asJSON  bool
	beacon  bool
	host    string
	timeout time.Duration
}

// probed is its answer.
type probed struct {
	*ckpt.Probe
	OK     bool  `json:"ok"` // nothing is missing
	TookMS int64 `json:"took_ms"`
}

func newStoreProbe(a *app) *cobra.Command {
	r := &probeVerb{app: a}
	c := &cobra.Command{
		Use: "probe URL", Args: cobra.ExactArgs(1),
		Short: "Tell what a store can do, and what is lost where it cannot",
		Long: `Try a store out: a directory, file:///DIR or s3://BUCKET/PREFIX?…. One object of a random name is written, read and
deleted. It ends with 0 when the store can be used, also when something is missing, which the table says.

With --beacon a directory gets a sign of this host, and the verb waits for the sign of another one: run it on two hosts
at a time to know whether they share the directory.`,
		Example: "  phalanx store probe 's3://ckpt/team?endpoint=https://s3.example.org'\n  phalanx store probe /shared/ckpt --beacon",
		RunE:    interruptible(r.run),
	}
	c.Flags().BoolVar(&r.asJSON, "json", false, "answer in JSON")
	c.Flags().BoolVar(&r.beacon, "beacon", false, "wait for the sign of another host in the directory")
	c.Flags().StringVar(&r.host, "host", "", "with --beacon: `NAME` of this host (default: the hostname)")
	c.Flags().DurationVar(&r.timeout, "timeout", probeTimeout, "give up after `D`")
	return c
}

func (r *probeVerb) run(c *cobra.Command, args []string) error {
	ctx, cancel := context.WithTimeoutCause(c.Context(), r.timeout, fmt.Errorf("not done within %s: %w", r.timeout, context.DeadlineExceeded))
	defer cancel()
	begun := time.Now()
	s, err := open.Store(ctx, args[0], open.Write, open.Options{Budget: &storewrap.Budget{}, Getenv: r.variable})
	if err != nil {
		return probeProblem(ctx, err)
	}
	answer := probed{Probe: &ckpt.Probe{Store: s.Capabilities().Name, Capabilities: s.Capabilities()}}
	prober := open.Prober(s)
	if r.beacon {
		if err := r.awaitHost(ctx, prober); err != nil {
			return err
		}
	}
	if prober != nil {
		if answer.Probe, err = prober.Probe(ctx); err != nil {
			return probeProblem(ctx, err)
		}
	}
	answer.OK, answer.TookMS = len(answer.Missing()) == 0, time.Since(begun).Milliseconds()
	if r.asJSON {
		return r.printJSON(answer)
	}
	return r.table(&answer)
}

func probeProblem(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		err = fmt.Errorf("%w: %w", err, cause)
	}
	return node.StoreProblem(err)
}

// awaitHost leaves a sign of this host in a directory and waits for another's.
func (r *probeVerb) awaitHost(ctx context.Context, p ckpt.Prober) error {
	dir, ok := p.(*fs.Store)
	if !ok {
		return problem(node.CodeUsage, "leave it out: every host reaches a bucket, or none", "--beacon is for directories")
	}
	host := r.host
	if host == "" {
		var err error
		if host, err = os.Hostname(); err != nil {
			return problem(node.CodeUsage, "give the name of this host with --host NAME", "host name: %w", err)
		}
	}
	err := dir.WriteBeacon(host)
	if err == nil {
		err = dir.AwaitBeacon(ctx, host)
	}
	if errors.Is(err, fs.ErrNotShared) {
		return problem(node.CodeNotFound, "run the same command on another host at the same time, and mount the same directory there", "%w", err)
	}
	if err != nil {
		return node.StoreProblem(err)
	}
	return nil
}

func (r *probeVerb) table(p *probed) error {
	say(r.stdout, "%s\n", p.Store)
	t := tabwriter.NewWriter(r.stdout, 0, 0, 2, ' ', 0)
	for _, a := range p.Abilities {
		has := "yes"
		if !a.Has {
			has = "NO"
		}
		say(t, "  %s\t%s\t%s\n", a.Name, has, a.Detail)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for _, a := range p.Missing() {
		say(r.stdout, "without %s: %s\n", a.Name, a.Lost)
	}
	return nil
}
