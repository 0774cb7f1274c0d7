#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Measures recovery, the cost of a step and the host all-reduce on this machine, and writes docs/benchmarks/core.md and
# core.json. It takes under four minutes and wants the machine for itself. Flags are those of scripts/bench, such as
# `scripts/bench.sh -kills 5 -out /tmp/here`.
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
"$bin/bench" -bin "$bin" -commit "$commit" "$@"
