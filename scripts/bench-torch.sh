#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Measures training with PyTorch through failures beside torchft, torchrun and gloo on this machine, and writes
# docs/benchmarks/torch.md and torch.json. It takes about fifteen minutes and wants the machine for itself. QUICK=1 shows that everything
# works and writes elsewhere. Arguments are those of scripts/torchbench/bench.py, such as `--only warm,steps`. The first run makes a Python
# environment with the others, see rivals-python.sh.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
go=${GO:-go}
python=$(scripts/rivals-python.sh)
make --no-print-directory python
# As `make build` does, and into a folder of its own: what is measured is this commit.
export CGO_ENABLED=0 GOAMD64=v1
bin=$(mktemp -d -t phalanx-bench-bin-XXXXXX)
trap 'rm -rf "$bin"' EXIT
commit=$(git rev-parse --short=12 HEAD 2>/dev/null || echo unknown)
if [[ -n $(git status --porcelain --untracked-files=no -- . ':!docs' 2>/dev/null) ]]; then
	commit+=-dirty
fi
"$go" build -buildvcs=false -trimpath -ldflags "-X main.version=$commit" -o "$bin/" ./cmd/phalanx
quick=()
if [[ -n ${QUICK:-} ]]; then
	quick=(--quick --out "${TMPDIR:-/tmp}/phalanx-bench-quick")
fi
export CUDA_VISIBLE_DEVICES='' PYTHONPATH=$PWD/python/src OMP_NUM_THREADS=1
"$python" scripts/torchbench/bench.py --phalanx "$bin/phalanx" --commit "$commit" "${quick[@]}" "$@"
