// SPDX-License-Identifier: Apache-2.0

package safetensors

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// ErrIncomplete: files say by their names how many there are, and some of them are not there. The copy or the download that
// made the folder was not finished.
var ErrIncomplete = errors.New("safetensors: files are missing")

// numbered are names that say of how many files each is which; all ranks' shard files of one model count together.
var (
	numbered = regexp.MustCompile(`^(.*)-([0-9]{1,9})-of-([0-9]{1,9})\.safetensors$`)
	ofRank   = regexp.MustCompile(`^shard-[0-9]+-`)
)

// Counted reports whether each name says of how many files it is which, so that a folder in which some are missing is known
// to be one without an index.
func Counted(names []string) bool {
	return !slices.ContainsFunc(names, func(name string) bool { return !numbered.MatchString(name) })
}

// complete reports which files names of the form NAME-00001-of-00012.safetensors say are missing. Numbers begin at 1, with a few
// writers at 0.
func complete(names []string) error {
	type series struct{ stem, total string }
	groups := map[series]map[int]bool{}
	width := map[series]int{}
	for _, name := range names {
		m := numbered.FindStringSubmatch(name)
		if m == nil {
			continue
		}
		i, _ := strconv.Atoi(m[2]) // at most nine digits
		group := series{ofRank.ReplaceAllString(m[1], "shard-*-"), m[3]}
		if groups[group] == nil {
			groups[group] = map[int]bool{}
		}
		groups[group][i] = true
		width[group] = len(m[2])
	}
	order := slices.SortedFunc(maps.Keys(groups), func(a, b series) int {
		return cmp.Or(strings.Compare(a.stem, b.stem), strings.Compare(a.total, b.total))
	})
	for _, group := range order {
		have := groups[group]
		want, _ := strconv.Atoi(group.total)
		first := 1
		if have[0] {
			first = 0
		}
		for i := first; i < first+want; i++ { // ends at the first that is missing, so after at most len(have)+1 turns
			if !have[i] {
				name := fmt.Sprintf("%s-%0*d-of-%s%s", group.stem, width[group], i, group.total, Suffix)
				return fmt.Errorf("%w: %d of %d are there, %q is not", ErrIncomplete, len(have), want, name)
			}
		}
	}
	return nil
}
