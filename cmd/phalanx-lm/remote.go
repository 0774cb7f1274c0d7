// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"log/slog"
)

// dial refuses: this build trains alone only.
func dial(context.Context, *slog.Logger) (session, error) {
	return nil, errors.New("this build has no client; give --alone")
}
