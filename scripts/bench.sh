#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Measures recovery, the cost of a step, the host all-reduce and the daemons' own use on this machine, and writes
# docs/benchmarks/core.md and core.json. It takes up to 15 minutes and wants the machine for itself. QUICK=1 takes a minute,
# shows that everything works and writes elsewhere. Flags are those of scripts/bench, such as
# `scripts/bench.sh -only recovery -kills 5 -out /tmp/here`.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
go=${GO:-go}
# As `make build` does, and into a folder of its own: what is measured is this commit.
export CGO_ENABLED=0 GOAMD64=v1
bin=$(mktemp -d -t phalanx-bench-bin-XXXXXX)
trap 'rm -rf "$bin"' EXIT
commit=$(git rev-parse --short=12 HEAD 2>/dev/null || echo unknown)
if [[ -n $(git status --porcelain --untracked-files=no -- . ':!docs' 2>/dev/null) ]]; then
	commit+=-dirty
fi
"$go" build -buildvcs=false -trimpath -ldflags "-X main.version=$commit" -o "$bin/" ./cmd/phalanx ./cmd/phalanx-lm ./scripts/bench
quick=()
if [[ -n ${QUICK:-} ]]; then
	quick=(-quick -out "${TMPDIR:-/tmp}/phalanx-bench-quick")
fi
"$bin/bench" -bin "$bin" -commit "$commit" "${quick[@]}" "$@"
