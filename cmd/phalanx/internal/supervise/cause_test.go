// SPDX-License-Identifier: Apache-2.0

package supervise

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// The first failure is that of the earliest time, of this run's newest lives, whatever others say of what followed.
func TestFirstError(t *testing.T) {
	dir := t.TempDir()
	began := time.Now().Add(-time.Minute)
	write := func(name, message string, at int64, written time.Time) {
		t.Helper()
		path := filepath.Join(dir, "log", name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		text := fmt.Sprintf(`{"message": {"message": %q, "extraInfo": {"timestamp": "%d"}}}`, message, at)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(path, written, written); err != nil {
			t.Fatal(err)
		}
	}
	if _, ok := FirstError(dir, "h", began); ok {
		t.Error("nothing was written")
	}
	now := time.Now()
	write("h.0.1.error.json", "of an earlier run", 1, began.Add(-time.Hour))
	write("other.0.9.error.json", "of another host", 1, now)
	if _, ok := FirstError(dir, "h", began); ok {
		t.Error("only others failed")
	}
	write("h.0.2.error.json", "an older life", 100, now)
	write("h.0.3.error.json", "connection closed", 200, now)
	write("h.1.1.error.json", "boom", 200, now.Add(-time.Second))
	write("h.2.1.error.json", "late", 201, now.Add(-2*time.Second))
	e, ok := FirstError(dir, "h", began)
	if !ok || e.Message != "boom" || e.Who.Member != "h/1" || e.Who.Incarnation != 1 {
		t.Errorf("%+v, %t", e, ok)
	}
}
