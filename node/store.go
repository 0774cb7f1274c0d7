// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"

	"phalanx/ckpt"
	"phalanx/ckpt/open"
	"phalanx/ckpt/s3"
	"phalanx/ckpt/storewrap"
)

// openStore opens the store of the job. One that does not answer now is no reason not to start: the trainer may live, and the
// first save that finds the store again tries it out.
func openStore(ctx context.Context, url string, observer storewrap.Observer) (ckpt.Store, error) {
	s, err := open.Store(ctx, url, open.WriteLater, open.Options{Observer: observer})
	if err != nil {
		return nil, StoreProblem(err)
	}
	return s, nil
}

// StoreProblem says with which code a store that cannot be used ends a program, and what to do.
func StoreProblem(err error) error {
	p := &Problem{Code: CodeFailed, Err: err, Hint: "name a store that can be used with --store; `phalanx store probe URL` tries one out"}
	switch {
	case errors.Is(err, open.ErrURL):
		p.Code, p.Hint = CodeUsage, "give a directory, file:///DIR or s3://BUCKET/PREFIX?endpoint=https://HOST"
	case errors.Is(err, s3.ErrRegion):
		p.Code, p.Hint = CodeUsage, "add region=NAME to the URL, or correct its endpoint"
	case errors.Is(err, ckpt.ErrAuth):
		p.Code, p.Hint = CodeAuth, "the variables and files that are read are in docs/stores.md"
	case errors.Is(err, s3.ErrNoBucket), errors.Is(err, ckpt.ErrNotFound):
		p.Code, p.Hint = CodeNotFound, "name it with --store, or the job's directory with --dir"
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, ckpt.ErrUnavailable): // slow, or nobody there
		p.Code, p.Hint = CodeTimeout, "see whether the store answers: phalanx store probe URL"
	}
	return p
}
