// SPDX-License-Identifier: Apache-2.0

package membership

import (
	"bytes"
	"errors"
	"testing"

	"phalanx"
)

func TestMetaRoundTrip(t *testing.T) {
	m := Meta{Incarnation: 1<<63 + 5, DaemonPort: 65535, Roles: RoleVoter | RoleTrainer}
	b := m.Encode()
	if len(b) > MaxMetaBytes {
		t.Fatalf("%d bytes", len(b))
	}
	// A later release appends fields; this one reads on.
	for _, in := range [][]byte{b, append(bytes.Clone(b), 1, 2, 3)} {
		if got, err := DecodeMeta(in); err != nil || got != m {
			t.Errorf("%x: %+v, %v", in, got, err)
		}
	}
	for _, bad := range [][]byte{nil, b[:11], append([]byte{9}, b[1:]...), make([]byte, MaxMetaBytes+1)} {
		if got, err := DecodeMeta(bad); !errors.Is(err, ErrMeta) {
			t.Errorf("%x: %+v, %v", bad, got, err)
		}
	}
}

func FuzzDecodeMeta(f *testing.F) {
	f.Add(Meta{Incarnation: 3, DaemonPort: 7000, Roles: RoleStandby}.Encode())
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := DecodeMeta(b)
		if err != nil {
			if !errors.Is(err, ErrMeta) || m != (Meta{}) {
				t.Fatalf("%+v, %v", m, err)
			}
			return
		}
		if !bytes.Equal(m.Encode(), b[:metaBytes]) {
			t.Fatalf("%x decodes to %+v, which encodes to %x", b, m, m.Encode())
		}
	})
}

func TestGossipName(t *testing.T) {
	of := phalanx.Incarnate{Member: "gpu-3.rack.example/12", Incarnation: 4}
	name := GossipName(of, "9f3c")
	got, nonce, err := ParseGossipName(name)
	if err != nil || got != of || nonce != "9f3c" {
		t.Errorf("%q: %v %q %v", name, got, nonce, err)
	}
	for _, bad := range []string{"", "h", "h/1", "h/1.2", "h/1.2-", "h/1.x-n", "h/x.1-n", "/1.2-n", "h/-1.2-n", "a b/1.2-n"} {
		if got, _, err := ParseGossipName(bad); err == nil {
			t.Errorf("%q parsed as %v", bad, got)
		}
	}
}

func FuzzParseGossipName(f *testing.F) {
	f.Add("host/1.2-nonce")
	f.Fuzz(func(t *testing.T, name string) {
		of, nonce, err := ParseGossipName(name)
		if err != nil {
			return
		}
		again, nonce2, err := ParseGossipName(GossipName(of, nonce))
		if err != nil || again != of || nonce2 != nonce {
			t.Fatalf("%q: %v %q, then %v %q %v", name, of, nonce, again, nonce2, err)
		}
	})
}
