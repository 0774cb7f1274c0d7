// SPDX-License-Identifier: Apache-2.0

package convert

import "fmt"

// castElements casts elements.
func castElements(to, from string, p []byte) ([]byte, error) {
	return nil, fmt.Errorf("cast %s to %s of %d bytes", from, to, len(p))
}
