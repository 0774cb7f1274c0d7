#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Trains for SOAK (2h) while processes are killed, stopped, drained and resized away, and looks for what grows. Wants
# bin/phalanx and bin/phalanx-lm: make soak builds them first.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
for program in phalanx phalanx-lm; do
	if [[ ! -x bin/$program ]]; then
		echo "soak: bin/$program is missing; run: make build" >&2
		exit 1
	fi
done
exec "${GO:-go}" run ./scripts/soak -bin bin -time "${SOAK:-2h}" "$@"
