// SPDX-License-Identifier: Apache-2.0

package settings

import (
	"phalanx/ckpt/convert"
	"phalanx/elastic"
)

// Beginning is what a new job begins with, nil for what the seed makes.
func (s *Settings) Beginning() *elastic.WarmStart {
	if s.WarmStart == "" {
		return nil
	}
	return &elastic.WarmStart{Place: s.WarmStart, Only: s.Only, Renames: s.Rename, Strip: s.Strip, Cast: s.Cast, Partial: s.Partial}
}

func (s *Settings) validateWarmStart() error {
	switch rules := len(s.Only) > 0 || len(s.Rename) > 0 || s.Strip || s.Cast || s.Partial; {
	case s.WarmStart == "" && rules:
		return usage("name the checkpoint with --warm-start, or leave them out", "--only, --rename, --strip-prefixes, --cast and --partial are rules of --warm-start")
	case s.WarmStart == "":
		return nil
	case s.Plain:
		return usage("load it in the script", "--warm-start: without the step protocol (--plain) nothing is known of the trainers' state")
	case s.Resume != "auto" && s.Resume != "never":
		return usage("leave one of them out", "--warm-start and --resume %s: a job begins anew, or goes on", s.Resume)
	}
	for _, text := range s.Rename {
		if _, err := convert.ParseRename(text); err != nil {
			return usage("such as --rename model.=", "%w", err)
		}
	}
	return nil
}
