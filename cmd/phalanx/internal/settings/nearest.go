// SPDX-License-Identifier: Apache-2.0

package settings

import (
	"fmt"
	"strings"
)

// suggest is the hint for a name that does not exist: the nearest one, or all of them.
func suggest(name string, known []string) string {
	if best := Nearest(name, known); best != "" {
		return fmt.Sprintf("did you mean %s?", best)
	}
	return "known are " + strings.Join(known, ", ")
}

// Nearest returns the known name with the fewest edits to name, "" when even that is another word.
func Nearest(name string, known []string) string {
	best, least := "", max(2, len(name)/3)+1
	for _, k := range known {
		if d := edits(name, k); d < least {
			best, least = k, d
		}
	}
	return best
}

// edits is the least number of characters to insert, delete or replace, by rows of the usual table.
func edits(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost++
			}
			diagonal = row[j+1]
			row[j+1] = min(cost, row[j]+1, diagonal+1)
		}
	}
	return row[len(b)]
}
