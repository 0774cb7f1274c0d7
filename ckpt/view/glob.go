// SPDX-License-Identifier: Apache-2.0

package view

import (
	"fmt"
	"regexp"
	"strings"
)

// Glob matches names of tensors: * is any text, dots and slashes included, ? is one character, and everything else is itself.
type Glob struct{ expression *regexp.Regexp }

// NewGlob makes a glob of a pattern.
func NewGlob(pattern string) (Glob, error) {
	if pattern == "" {
		return Glob{}, fmt.Errorf("an empty pattern matches nothing; * matches every name")
	}
	text := regexp.QuoteMeta(pattern)
	text = strings.ReplaceAll(text, `\*`, `.*`)
	text = strings.ReplaceAll(text, `\?`, `.`)
	e, err := regexp.Compile(`(?s)\A` + text + `\z`)
	if err != nil {
		return Glob{}, fmt.Errorf("pattern %.80q: %w", pattern, err)
	}
	return Glob{e}, nil
}

// Match reports whether the glob matches a name.
func (g Glob) Match(name string) bool { return g.expression.MatchString(name) }

// AnyGlob matches what one of several patterns matches; no pattern matches every name.
func AnyGlob(patterns []string) (func(name string) bool, error) {
	globs := make([]Glob, len(patterns))
	for i, p := range patterns {
		var err error
		if globs[i], err = NewGlob(p); err != nil {
			return nil, err
		}
	}
	return func(name string) bool {
		for _, g := range globs {
			if g.Match(name) {
				return true
			}
		}
		return len(globs) == 0
	}, nil
}
