// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"phalanx"
	"phalanx/cmd/phalanx/internal/control"
	"phalanx/node"
)

func newDrain(a *app) *cobra.Command {
	r := &reader{app: a}
	var why string
	c := &cobra.Command{
		Use: "drain MEMBER", Args: cobra.ExactArgs(1),
		Short:   "Let a member leave the world at the end of a step",
		Example: "  phalanx drain host0/3 --why 'fan of GPU 3'",
		RunE: func(c *cobra.Command, args []string) error {
			member := phalanx.MemberID(args[0])
			if !member.Valid() {
				return problem(node.CodeUsage, "a member is HOST/INDEX; phalanx members lists them", "member %q", args[0])
			}
			return r.ask(c, fmt.Sprintf("%s leaves at the end of a step", member), func(ctx context.Context, l control.Living) error {
				return control.Drain(ctx, l, member, why)
			})
		},
	}
	r.bind(c)
	c.Flags().StringVar(&why, "why", "", "reason, for the history")
	return c
}

func newResize(a *app) *cobra.Command {
	r := &reader{app: a}
	var why string
	c := &cobra.Command{
		Use: "resize N", Args: cobra.ExactArgs(1),
		Short: "Set the number of ranks of a full world",
		RunE: func(c *cobra.Command, args []string) error {
			n, err := strconv.Atoi(args[0])
			if err != nil || n < 1 {
				return problem(node.CodeUsage, "give the number of ranks, at least 1", "resize %q", args[0])
			}
			return r.ask(c, fmt.Sprintf("a full world has %d ranks from now on", n), func(ctx context.Context, l control.Living) error {
				return control.Resize(ctx, l, n, why)
			})
		},
	}
	r.bind(c)
	c.Flags().StringVar(&why, "why", "", "reason, for the history")
	return c
}

// ask brings a wish to the first living daemon that answers. A refusal is an answer.
func (r *reader) ask(c *cobra.Command, done string, wish func(context.Context, control.Living) error) error {
	if err := r.load(c); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(c.Context(), askTimeout)
	defer cancel()
	err := control.ErrNobody
	for _, l := range control.Find(r.settings.Dir) {
		if err = answers(ctx, l); err != nil {
			continue
		}
		err = wish(ctx, l)
		var refused *control.Refused
		if err == nil || errors.As(err, &refused) || ctx.Err() != nil {
			break
		}
	}
	if err != nil {
		return r.explain(err)
	}
	if r.asJSON {
		return r.printJSON(map[string]bool{"ok": true})
	}
	err = tell(r.stdout, "%s\n", done)
	return err
}

// answers finds out early that a daemon is stopped: it takes requests and does nothing about them.
func answers(ctx context.Context, l control.Living) error {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	_, err := control.Status(ctx, l, false)
	return err
}
