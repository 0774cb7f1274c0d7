// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"

	"phalanx"
)

// record keeps a line for each step that a trainer applied, in a file that all trainers of a host may share. It is written
// before anybody else hears of the step from this trainer, so that a kill cannot hide one. nil records nothing.
type record struct{ file *os.File }

func openRecord(path string) (*record, error) {
	if path == "" {
		return nil, nil
	}
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("record the steps (--record): %w", err)
	}
	return &record{f}, nil
}

// applied notes the step, the generation that it was voted for in, the gradient's digest and that of the parameters after it.
func (r *record) applied(step phalanx.Step, g phalanx.Generation, gradient, parameters phalanx.Digest) error {
	if r == nil {
		return nil
	}
	if _, err := fmt.Fprintf(r.file, "step=%d generation=%s gradient=%s parameters=%s pid=%d\n", step, g, gradient, parameters, os.Getpid()); err != nil {
		return fmt.Errorf("record step %d: %w", step, err)
	}
	return nil
}

func (r *record) close() error {
	if r == nil {
		return nil
	}
	return r.file.Close()
}
