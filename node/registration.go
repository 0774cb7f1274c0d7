// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bytes"
	"encoding/json"
	"fmt"

	"phalanx"
	"phalanx/client/wire"
)

// registration is what a trainer has said of itself. It lies beside the page of its life, for a daemon that takes the life over before
// the log has it: nobody else may know the layout of its coordinate.
type registration struct {
	Spec       phalanx.JobSpec      `json:"spec"`
	State      []phalanx.TensorInfo `json:"state"`
	Coordinate phalanx.Pin          `json:"coordinate"`
}

// registered is the file of a life's registration.
const registered = "hello"

// keepRegistration leaves it behind.
func keepRegistration(paths Paths, index int, n phalanx.Incarnation, h *wire.Hello) error {
	b, err := json.Marshal(registration{h.Spec, h.State, h.Coordinate})
	if err != nil {
		return err
	}
	r, err := paths.memory.CreateRegion(paths.Shared(index, n, registered), int64(len(b)))
	if err != nil {
		return fmt.Errorf("keep what the trainer registered: %w", err)
	}
	copy(r.Bytes(), b)
	return r.Unmap()
}

// findRegistration reads it, nil when there is none.
func findRegistration(paths Paths, index int, n phalanx.Incarnation) *registration {
	r, err := paths.memory.OpenRegion(paths.Shared(index, n, registered), false)
	if err != nil {
		return nil
	}
	defer func() { _ = r.Unmap() }()
	x := &registration{}
	if json.Unmarshal(bytes.TrimRight(r.Bytes(), "\x00"), x) != nil || x.Spec.Validate() != nil {
		return nil // damaged: the log may know it
	}
	return x
}
