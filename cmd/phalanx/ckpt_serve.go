// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"phalanx/ckpt"
	"phalanx/ckpt/intake"
	"phalanx/node"
)

// serveVerb is ckpt serve.
type serveVerb struct {
	policyFlags // with the reader
	socket      string
	onStdin     bool
}

func newCkptServe(a *app) *cobra.Command {
	r := &reader{app: a}
	v := &serveVerb{policyFlags: policyFlags{reader: r}}
	c := &cobra.Command{
		Use: "serve --socket PATH", Args: cobra.NoArgs,
		Short: "Let programs of this host write and read checkpoints, without a running job",
		Long: `Serve the checkpoints of a store on a unix socket, as a job's daemons do for their trainers. The Python package starts this by
itself where no daemon is. It prints one line when programs may connect, and ends with 0 on SIGTERM, SIGINT, or with --stdin
when its input ends. With a policy (--keep and the like) it is applied after each publish; without one nothing is removed.`,
		Example: "  phalanx ckpt serve --store s3://ckpt/team --job demo --socket /run/user/1000/ckpt.sock",
		RunE:    v.run,
	}
	r.bind(c)
	v.bind(c)
	c.Flags().StringVar(&v.socket, "socket", "", "listen at `PATH`, for this user alone")
	c.Flags().BoolVar(&v.onStdin, "stdin", false, "end when the input ends: with the program that started this")
	return c
}

func (v *serveVerb) run(c *cobra.Command, _ []string) error {
	if v.socket == "" {
		return problem(node.CodeUsage, "give --socket PATH", "no socket to listen at")
	}
	byFlag := v.given(c) // before variables and the file are read
	if err := v.load(c); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(c.Context(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	s, err := createStore(ctx, v.settings.Store)
	if err != nil {
		return err
	}
	service := &intake.Service{
		Store: s, Job: v.settings.Job, By: v.operator(), Grace: ckpt.DefaultGrace,
		Log: slog.New(slog.NewTextHandler(v.stderr, &slog.HandlerOptions{Level: slog.LevelWarn})),
	}
	if byFlag {
		if service.Retain, err = v.policy(c); err != nil {
			return err
		}
		if service.Retain.KeepLast < 1 {
			return problem(node.CodeUsage, "give --keep N with N from 1 on, or no policy: then nothing is removed", "keep %d checkpoints: keep at least one", service.Retain.KeepLast)
		}
	}
	l, err := listenLocal(v.socket)
	if err != nil {
		return problem(node.CodeFailed, "choose another path with --socket, shorter than 108 bytes", "listen at %s: %w", v.socket, err)
	}
	if v.onStdin {
		var cancel context.CancelFunc
		ctx, cancel = context.WithCancel(ctx)
		defer cancel()
		go func() { // ends with the input, at the latest with this process
			_, _ = io.Copy(io.Discard, os.Stdin)
			cancel()
		}()
	}
	return v.serve(ctx, l, service)
}

// serve answers until ctx ends, then lets requests under way finish for a moment.
func (v *serveVerb) serve(ctx context.Context, l net.Listener, service *intake.Service) error {
	mux := http.NewServeMux()
	service.Register(mux)
	defer service.Close()
	srv := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	served := make(chan error, 1) // 1: it ends once
	go func() { served <- srv.Serve(l) }()
	if err := tell(v.stdout, "serves %s at %s\n", v.settings.Store, v.socket); err != nil {
		return err
	}
	select {
	case err := <-served:
		return fmt.Errorf("serve %s: %w", v.socket, err)
	case <-ctx.Done():
	}
	ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	if err := srv.Shutdown(ending); err != nil {
		_ = srv.Close() // requests that did not end are cut off: what they were about is not published
	}
	if err := <-served; !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve %s: %w", v.socket, err)
	}
	return nil
}

// listenLocal makes a unix socket for this user alone. One that nobody listens at any more gives way.
func listenLocal(path string) (net.Listener, error) {
	if c, err := net.DialTimeout("unix", path, time.Second); err == nil {
		return nil, errors.Join(errors.New("somebody listens there"), c.Close())
	}
	_ = os.Remove(path) // of a process before this one
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}
