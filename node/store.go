// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"strings"

	"phalanx/ckpt"
	"phalanx/ckpt/fs"
)

// OpenStore opens the checkpoint store that a URL names: a directory, plain or as file://.
func OpenStore(url string) (ckpt.Store, error) {
	scheme, rest, found := strings.Cut(url, "://")
	switch {
	case !found:
		rest = url
	case scheme != "file":
		return nil, fmt.Errorf("store %q: scheme %q is not known; use a directory or file:///DIR", url, scheme)
	}
	if rest == "" {
		return nil, fmt.Errorf("store %q: no directory", url)
	}
	s, err := fs.New(rest)
	if err != nil {
		return nil, fmt.Errorf("open store %s: %w", rest, err)
	}
	return s, nil
}
