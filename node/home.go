// SPDX-License-Identifier: Apache-2.0

package node

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"phalanx"
	"phalanx/elastic"
)

// homeFile holds what names a directory for ever.
const homeFile = "host-id"

// Home names the directory of a host's members: what is drawn for it when the first of them begins, and where it lies. A boot id
// does not tell hosts apart (containers on one kernel share it), and a name is what two of them may be given by mistake.
func (p Paths) Home() (string, error) {
	path := filepath.Join(p.Dir, homeFile)
	b, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) { // the daemons of a host start together: the name appears with the content
		id := make([]byte, 8)
		_, _ = rand.Read(id) // never fails
		if err := createWhole(path, []byte(hex.EncodeToString(id)+"\n")); err != nil && !errors.Is(err, os.ErrExist) {
			return "", &Problem{CodeFailed, fmt.Errorf("name the directory: %w", err), "choose a directory that can be written with --dir"}
		}
		b, err = os.ReadFile(path)
	}
	id := strings.TrimSpace(string(b))
	if err == nil && len(id) != 16 {
		err = fmt.Errorf("%q is none", id)
	}
	if err != nil {
		return "", &Problem{CodeFailed, fmt.Errorf("read the directory's name %s: %w", path, err), "remove the file; the next start makes another"}
	}
	return id + "." + p.place, nil
}

// otherHost reports whether two daemons whose members have the same host name run on two hosts. A host is a name and a directory;
// of daemons that do not name theirs, those of one member are told apart by boot and by server.
func (p Peer) otherHost(o Peer) bool {
	switch {
	case p.Member.Host() != o.Member.Host():
		return false
	case p.Home != "" && o.Home != "":
		return p.Home != o.Home
	case p.Member == o.Member:
		return p.BootID != o.BootID && (p.Server == "" || p.Server != o.Server)
	}
	return false
}

// A host that comes back may be faster than the news of its end: of two daemons of one name the older one is believed to live
// only if it is still heard when the newer one has been there for this long.
const twoOfAName = 2 * time.Second

// doubted judges a daemon by what is known of another one, or the same, of its host's name that was heard a moment ago.
func (v *memberView) doubted(p Peer, now time.Time) string {
	if v.conn == nil || !v.peer.otherHost(p) || now.Sub(v.heard) >= time.Second {
		v.rival = time.Time{}
		return ""
	}
	if v.rival.IsZero() || now.Sub(v.rivalSeen) > time.Second {
		v.rival = now
	}
	v.rivalSeen = now
	if now.Sub(v.rival) < twoOfAName {
		return askAgain
	}
	return livesElsewhere(v.id)
}

// doubted judges a daemon by everybody of its host's name: one directory is one host, whichever of its members come.
func (a *arbiter) doubted(p Peer, now time.Time) string {
	if p.otherHost(a.d.self()) {
		return livesElsewhere(a.d.me())
	}
	why := ""
	for id, v := range a.members {
		if v.local || id.Host() != p.Member.Host() {
			continue
		}
		if w := v.doubted(p, now); why == "" || w != "" && w != askAgain {
			why = w
		}
	}
	if why == "" && a.usurps(p) {
		why = askAgain
	}
	return why
}

// usurps reports whether a daemon calls itself by the life of one in another directory, which the log still counts on: an empty
// directory begins to count its lives anew, and that life's promises are not in it. It is let in once the log has removed the life.
func (a *arbiter) usurps(p Peer) bool {
	m := a.d.state.Member(p.Member)
	if m == nil || m.State == elastic.Gone || m.Incarnation < p.Incarnation {
		return false
	}
	known, ok := a.d.roster.peer(p.Member)
	if v := a.members[p.Member]; v != nil && v.peer.Home != "" {
		known, ok = v.peer, true
	}
	return ok && known.Home != "" && p.Home != "" && known.Home != p.Home
}

func livesElsewhere(id phalanx.MemberID) string {
	return fmt.Sprintf("a living member is called %s, on another host or in another directory; give this host a name of its own with --host NAME", id)
}
