// SPDX-License-Identifier: Apache-2.0

package ckpt_test

import (
	"bytes"
	"testing"

	"phalanx/ckpt"
	"phalanx/ckpt/mem"
)

// FuzzDamage: whatever one object of a checkpoint is changed to, reading the checkpoint gives the bytes that were written, or
// says that they are not there.
func FuzzDamage(f *testing.F) {
	for which := range 5 {
		f.Add(which, 3, []byte{1})
		f.Add(which, -1, []byte("{}"))
		f.Add(which, 100, []byte{0xff, 0xff})
	}
	f.Fuzz(func(t *testing.T, which, at int, damage []byte) {
		want := newState(smallLayout(), 5)
		store := mem.New()
		if _, err := save(t, store, attempt(4, 1, 1), want, 2); err != nil {
			t.Fatal(err)
		}
		objects, err := store.List(t.Context(), "", "", 1000)
		if err != nil || len(objects) == 0 {
			t.Fatalf("%d objects, %v", len(objects), err)
		}
		o := objects[uint(which)%uint(len(objects))]
		content, err := store.Get(t.Context(), o.Key, 0, o.Size)
		if err != nil {
			t.Fatal(err)
		}
		content = bytes.Clone(content)
		if at < 0 {
			content = damage
		}
		for i, c := range damage {
			if at >= 0 && at < len(content)-i {
				content[at+i] ^= c
			}
		}
		if err := store.Put(t.Context(), o.Key, ckpt.Bytes(content)); err != nil {
			t.Fatal(err)
		}
		cp, err := ckpt.OpenLatest(t.Context(), store, "job")
		if err != nil {
			return
		}
		for _, st := range cp.States() {
			for i, info := range st.Layout() {
				p := make([]byte, info.Bytes())
				if st.ReadRange(t.Context(), i, 0, p) == nil && !bytes.Equal(p, want.content[i]) {
					t.Fatalf("%s was changed, and tensor %s is read as other bytes than were written", o.Key, info.Name)
				}
			}
		}
	})
}
