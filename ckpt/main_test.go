// SPDX-License-Identifier: Apache-2.0

package ckpt_test

import (
	"testing"

	"go.uber.org/goleak"

	"phalanx/ckpt"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

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
