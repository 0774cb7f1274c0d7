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
	two := newHostMemory(1200 * mib)
	admitted := outfitBytes(100*mib, 2*mib, 500*mib, 500*mib)
	if err := two.admit(admitted); err != nil {
		t.Fatal(err)
	}
	two.set(partCopies, 500*mib) // gives way
	if err := two.grow(admitted, partSlab, 500*mib); err != nil || two.used() != (606+500+500)*mib {
		t.Errorf("a second slab: %v, %d MiB are used", err, two.used()/mib)
	}
	if err := m.grow(admitted, partSlab, 500*mib); err == nil || !strings.Contains(err.Error(), "takes 524288000 bytes, 111149056 more than --max-host-bytes leaves") {
		t.Errorf("a second slab where 394 MiB are left: %v", err)
	}
	var none *hostMemory
	if none.set("x", 1); !none.fits(1<<60) || none.used() != 0 || none.puts(1) != putsMost || none.admit(nil) != nil || none.grow(nil, partSlab, 1<<60) != nil {
		t.Error("without a limit nothing is refused")
	}
	if got := bufferBytes(4, 10); got != 50 {
		t.Errorf("buffers of a small state take %d bytes", got)
	}
}
