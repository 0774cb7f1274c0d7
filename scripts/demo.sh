#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Trains with four ranks four times: undisturbed, with kills on the way, killed as a whole and started again, and with a spare. The
# results must be the same to the bit. Wants bin/phalanx and bin/phalanx-lm: make demo builds them first.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
for program in phalanx phalanx-lm; do
	if [[ ! -x bin/$program ]]; then
		echo "demo: bin/$program is missing; run: make build" >&2
		exit 1
	fi
done
exec "${GO:-go}" run ./scripts/demo -bin bin "$@"
