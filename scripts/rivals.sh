#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Measures gloo, torchft and torchrun beside this project on this machine, and writes docs/benchmarks/rivals.md and
# rivals.json. It takes about ten minutes and wants the machine for itself. The first run makes a Python environment with
# them, see rivals-python.sh.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
exec scripts/bench.sh -rivals "$(scripts/rivals-python.sh)" "$@"
