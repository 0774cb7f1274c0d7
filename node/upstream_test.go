// SPDX-License-Identifier: Apache-2.0

package node

import (
	"testing"
	"time"
)

// A daemon without a leader looks often while an election may be on, and seldom once that cannot be.
func TestRetryAfter(t *testing.T) {
	if w := retryAfter(1); w < 20*time.Millisecond || w > 50*time.Millisecond {
		t.Errorf("the first retry after %s", w)
	}
	if w := retryAfter(1000); w < 400*time.Millisecond || w > time.Second {
		t.Errorf("a late retry after %s", w)
	}
}
