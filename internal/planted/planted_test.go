// SPDX-License-Identifier: Apache-2.0

//go:build planted

package planted

import "testing"

func TestPlant(t *testing.T) {
	if On(CommitShort) {
		t.Fatal("on before it was planted")
	}
	remove := Plant(CommitShort)
	if !On(CommitShort) || On(SealIgnored) {
		t.Error("the planted bug is off, or another one on")
	}
	if n := remove(); n != 1 {
		t.Errorf("reached %d times, not once", n)
	}
	if On(CommitShort) {
		t.Error("still on after it was removed")
	}
}
