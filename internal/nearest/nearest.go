// SPDX-License-Identifier: Apache-2.0

// Package nearest finds what somebody meant who wrote a name that does not exist.
package nearest

import (
	"fmt"
	"strings"
)

// Suggest is the hint for a name that does not exist: the nearest one, or all of them.
func Suggest(name string, known []string) string {
	if best := Name(name, known); best != "" {
		return fmt.Sprintf("did you mean %s?", best)
	}
	return "known are " + strings.Join(known, ", ")
}

// Name returns the known name with the fewest edits to name, "" when even that is another word.
func Name(name string, known []string) string {
	best, least := "", max(2, len(name)/3)+1
	for _, k := range known {
		if d := edits(name, k); d < least {
			best, least = k, d
		}
	}
	return best
}

// edits is the least number of characters to insert, delete, replace or swap with their neighbour, by rows of the usual table.
func edits(a, b string) int {
	before, last, row := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := range len(a) {
		row[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			row[j+1] = min(last[j]+cost, row[j]+1, last[j+1]+1)
			if i > 0 && j > 0 && a[i] == b[j-1] && a[i-1] == b[j] {
				row[j+1] = min(row[j+1], before[j-1]+1)
			}
		}
		before, last, row = last, row, before
	}
	return last[len(b)]
}
