// SPDX-License-Identifier: Apache-2.0

package supervise

import (
	"os"
	"path/filepath"
	"strings"
	"time"

	"phalanx"
	"phalanx/node"
)

// TrainerError is why a life of a trainer failed, by its own word.
type TrainerError struct {
	Who phalanx.Incarnate
	node.TrainerError
	written time.Time // its file
}

// before orders errors by the time that they name, in whole seconds, then by that of their files.
func (e *TrainerError) before(o *TrainerError) bool {
	if !e.At.IsZero() && !o.At.IsZero() && !e.At.Equal(o.At) {
		return e.At.Before(o.At)
	}
	return e.written.Before(o.written)
}

// FirstError is the error that the other members' errors probably follow from: the first one among those of each member's newest
// failed life of this run. What only wrote to its output has no word here.
func FirstError(dir, host string, began time.Time) (TrainerError, bool) {
	logs := filepath.Join(dir, "log")
	entries, err := os.ReadDir(logs)
	if err != nil {
		return TrainerError{}, false
	}
	newest := map[uint64]TrainerError{} // by index
	f := follower{host: host}
	for _, entry := range entries {
		name, is := strings.CutSuffix(entry.Name(), ".error.json")
		index, life, ours := f.parse(name + ".log")
		if !is || !ours || newest[index].Who.Incarnation > phalanx.Incarnation(life) {
			continue
		}
		info, err := entry.Info()
		if err != nil || info.ModTime().Before(began) {
			continue
		}
		if e, ok := node.ReadTrainerError(filepath.Join(logs, entry.Name())); ok {
			who := phalanx.Incarnate{Member: phalanx.NewMemberID(host, int(index)), Incarnation: phalanx.Incarnation(life)}
			newest[index] = TrainerError{who, e, info.ModTime()}
		}
	}
	var first TrainerError
	found := false
	for _, e := range newest {
		if !found || e.before(&first) {
			first, found = e, true
		}
	}
	return first, found
}
