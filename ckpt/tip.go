// SPDX-License-Identifier: Apache-2.0

package ckpt

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
)

// tip is the end of a job's chain, as a publisher meets it.
type tip struct {
	number uint64 // the highest that is taken, 0: none
	sha256 string // what the next commit names as its predecessor, "" for the first
	newest Record // the newest that can be read, below number when objects are damaged; the zero Record: none
}

// findTip reads the end of the chain. An object that is no record takes its number all the same, with its bytes as its
// content: one damaged byte must not end publishing for ever.
func findTip(ctx context.Context, s Store, job string) (tip, error) {
	n, err := newestNumber(ctx, s, job)
	if err != nil || n == 0 {
		return tip{}, err
	}
	r, content, err := readNumbered(ctx, s, job, n)
	switch {
	case err == nil:
		return tip{number: n, sha256: r.SHA256, newest: r}, nil
	case content == nil || ofNewerFormat(content):
		return tip{}, err
	}
	r, err = readableBelow(ctx, s, job, n)
	return tip{number: n, sha256: sha256Hex(content), newest: r}, err
}

// CheckFormat fails when the newest commit object of a job was written in a format that this program does not know: nothing
// can be published after it. The error is an ErrFormat then; others are about reaching the store.
func CheckFormat(ctx context.Context, s Store, job string) error {
	_, err := findTip(ctx, s, job)
	if err != nil {
		return fmt.Errorf("look for the newest commit of %s: %w", job, err)
	}
	return nil
}

// readableBelow reads the newest record below a number that is not damaged, the zero Record when there is none.
func readableBelow(ctx context.Context, s Store, job string, number uint64) (Record, error) {
	for n := number; n > 1; {
		n--
		r, content, err := readNumbered(ctx, s, job, n)
		switch {
		case err == nil:
			return r, nil
		case ofNewerFormat(content):
			return Record{}, err
		case !isDamage(err) && !errors.Is(err, ErrFormat):
			return Record{}, fmt.Errorf("what commit %d fences: %w", n, err)
		}
	}
	return Record{}, nil
}

// ofNewerFormat tells a commit object of a newer release, which must be obeyed and cannot be, from a damaged one.
func ofNewerFormat(content []byte) bool {
	var head struct {
		Format int `json:"format"`
	}
	return json.Unmarshal(content, &head) == nil && head.Format > FormatVersion
}
