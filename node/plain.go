// SPDX-License-Identifier: Apache-2.0

package node

import "phalanx/elastic"

// plainRun is a trainer without the step protocol.
type plainRun struct{ rendezvous string }

func (p *plainRun) stateChanged(*elastic.State) {}
func (p *plainRun) exited(string, int)          {}
