#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Measures checkpoints on this machine, PyTorch's DCP and torch-checkpointing beside ours, and writes docs/benchmarks/ckpt.md
# and ckpt.json. It takes up to 12 minutes, 16 GiB of memory and 6 GiB of disk, and wants the machine for itself. QUICK=1 takes
# a minute, shows that everything works and writes elsewhere. The first run makes a Python environment, see rivals-python.sh;
# RIVALS=PYTHON names one that is there, and RIVALS= measures ours alone. Flags are those of scripts/bench, such as
# `scripts/bench-ckpt.sh -only main,disk -disk /mnt/scratch`. A machine without Go takes the built programs and this folder:
# `bin/bench -ckpt -bin bin -python python3 -only main,small,large,disk -out /tmp/here`, after
# `CGO_ENABLED=0 go build -o bin/ ./cmd/phalanx ./scripts/bench`; what that python does not have is left out.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
if [[ -z ${RIVALS+set} ]]; then
	RIVALS=$(scripts/rivals-python.sh)
fi
exec scripts/bench.sh -ckpt -python "$RIVALS" -versitygw "$(scripts/versitygw.sh)" "$@"
