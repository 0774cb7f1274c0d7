// SPDX-License-Identifier: Apache-2.0

package node

import (
	"strings"
	"testing"
)

func TestHostMemory(t *testing.T) {
	const mib = 1 << 20
	m := newHostMemory(1000 * mib)
	if err := m.admit(outfitBytes(100*mib, 2*mib, 500*mib, 500*mib)); err != nil {
		t.Fatal(err)
	}
	if got := m.used(); got != 606*mib {
		t.Errorf("%d MiB are used", got/mib)
	}
	if m.fits(395*mib) || !m.fits(394*mib) {
		t.Error("394 MiB are left")
	}
	if got := m.puts(500 * mib); got != putsMost {
		t.Errorf("%d puts fit", got)
	}
	m.set(partCopies, 391*mib)
	if got := m.puts(500 * mib); got != 2 {
		t.Errorf("%d puts fit beside a copy", got)
	}
	m.set(partCopies, 394*mib)
	if got := m.puts(500 * mib); got != 1 {
		t.Errorf("%d puts fit into nothing: the first one was counted", got)
	}
	tight := newHostMemory(605 * mib)
	err := tight.admit(outfitBytes(100*mib, 2*mib, 500*mib, 500*mib))
	if err == nil || !strings.Contains(err.Error(), "635437056") || !strings.Contains(err.Error(), "slab 524288000") {
		t.Errorf("%v", err)
	}
	var none *hostMemory
	if none.set("x", 1); !none.fits(1<<60) || none.used() != 0 || none.puts(1) != putsMost || none.admit(nil) != nil {
		t.Error("without a limit nothing is refused")
	}
	if got := bufferBytes(4, 10); got != 50 {
		t.Errorf("buffers of a small state take %d bytes", got)
	}
}
