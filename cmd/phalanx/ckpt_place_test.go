// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"phalanx/ckpt"
	"phalanx/ckpt/pickle"
	"phalanx/ckpt/view"
	"phalanx/node"
)

// TestHintForDanger: whoever has a file that would run code is not sent to another release that may load it.
func TestHintForDanger(t *testing.T) {
	foreign := &pickle.UnknownGlobalError{Module: "os", Name: "system", Dangerous: true}
	harmless := &pickle.UnknownGlobalError{Module: "mine", Name: "Class"}
	for _, c := range []struct {
		err  error
		hint string
	}{
		{fmt.Errorf("x.pt: %w: %w", foreign, ckpt.ErrFormat), "do not load this file"},
		{&view.DamageError{Err: fmt.Errorf("%w: %w", foreign, ckpt.ErrFormat)}, "do not load this file"},
		{fmt.Errorf("x.pt: %w: %w", harmless, ckpt.ErrFormat), "convert with that program"},
	} {
		var p *node.Problem
		if err := viewError(c.err); !errors.As(err, &p) || !strings.Contains(p.Hint, c.hint) || p.Code != codeIncompatible {
			t.Errorf("%v: %+v", c.err, p)
		}
	}
}
