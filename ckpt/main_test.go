// SPDX-License-Identifier: Apache-2.0

package ckpt_test

import (
	"os"
	"slices"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"phalanx/ckpt"
)

// A fuzzing process is interrupted in the middle of a read, so only the others are searched for goroutines that are left.
func TestMain(m *testing.M) {
	if slices.ContainsFunc(os.Args, func(a string) bool { return strings.HasPrefix(a, "-test.fuzz") }) {
		os.Exit(m.Run())
	}
	goleak.VerifyTestMain(m)
}

func TestChecksumVector(t *testing.T) {
	// The check value of CRC-64/NVME: a reader in another language must agree.
	if c := ckpt.Checksum([]byte("123456789")); c.String() != "ae8b14860a799888" {
		t.Fatal(c)
	}
	var c ckpt.CRC
	if err := c.UnmarshalText([]byte("ae8b14860a799888")); err != nil || c != ckpt.Checksum([]byte("123456789")) {
		t.Fatal(c, err)
	}
	for _, bad := range []string{"", "AE8B14860A799888", "ae8b14860a79988", "ae8b14860a7998888", "ae8b14860a79988g"} {
		if c.UnmarshalText([]byte(bad)) == nil {
			t.Errorf("%q was taken", bad)
		}
	}
}
