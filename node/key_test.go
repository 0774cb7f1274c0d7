// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestJobKeyReadsItsOwnText(t *testing.T) {
	k := NewJobKey()
	if k.IsZero() || k == NewJobKey() {
		t.Fatal("keys are not drawn")
	}
	got, err := ParseJobKey("  " + k.String() + "\n")
	if err != nil || got != k {
		t.Fatalf("read %v, %v; want the key itself", got, err)
	}
	upper, err := ParseJobKey(strings.ToUpper(k.String()))
	if err != nil || upper != k {
		t.Errorf("upper case is not read: %v", err)
	}
}

func TestJobKeyRefusesOtherText(t *testing.T) {
	whole := NewJobKey().String()
	for _, text := range []string{"", "x", whole[:63], whole[:62], whole + "00", strings.Repeat("g", 64)} {
		if _, err := ParseJobKey(text); !errors.Is(err, ErrKey) {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func TestReadJobKeyWantsAFileOfItsOwn(t *testing.T) {
	k := NewJobKey()
	path := filepath.Join(t.TempDir(), "key")
	if _, err := ReadJobKey(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
	for _, c := range []struct {
		rights os.FileMode
		ok     bool
	}{{0o600, true}, {0o400, true}, {0o640, false}, {0o604, false}, {0o620, false}} {
		if err := errors.Join(os.RemoveAll(path), os.WriteFile(path, []byte(k.String()+"\n"), 0o600), os.Chmod(path, c.rights)); err != nil {
			t.Fatal(err)
		}
		got, err := ReadJobKey(path)
		if c.ok && (err != nil || got != k) {
			t.Errorf("rights %o: %v", c.rights, err)
		}
		if !c.ok && (err == nil || !strings.Contains(err.Error(), "chmod 600")) {
			t.Errorf("rights %o: %v, want a word on how to mend them", c.rights, err)
		}
	}
	if err := errors.Join(os.WriteFile(path, []byte("short"), 0o600), os.Chmod(path, 0o600)); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadJobKey(path); !errors.Is(err, ErrKey) || !strings.Contains(err.Error(), path) {
		t.Errorf("a damaged file: %v", err)
	}
}

// What is derived from a key differs by purpose and by key, gives the key itself away nowhere, and is the same for everyone.
func TestDerivedKeys(t *testing.T) {
	k, other := NewJobKey(), NewJobKey()
	if !bytes.Equal(k.Gossip(), k.Gossip()) || bytes.Equal(k.Gossip(), other.Gossip()) || bytes.Equal(k.Gossip(), k[:]) || len(k.Gossip()) != 32 {
		t.Error("the gossip key is not a function of the key alone")
	}
	tag := k.jobTag("a")
	if tag != k.jobTag("a") || tag == k.jobTag("b") || tag == other.jobTag("a") {
		t.Error("the tag does not tell jobs apart")
	}
	if strings.Contains(k.String(), tag) {
		t.Error("the tag is a part of the key")
	}
}
