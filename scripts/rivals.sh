#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Measures gloo, torchft and torchrun beside this project on this machine, and writes docs/benchmarks/rivals.md and
# rivals.json. It takes about ten minutes and wants the machine for itself. The first run makes a Python environment with
# torch and torchft (about 6 GB) in the user's cache; PYTHON names the interpreter that it is made of, 3.10 to 3.13.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
cache=${XDG_CACHE_HOME:-$HOME/.cache}/phalanx/rivals
packages=(torch==2.15.0 numpy torchft-nightly)
made=$cache/venv/made-of
if [[ ! -e $made || $(<"$made") != "${packages[*]}" ]]; then
	echo "making $cache/venv: ${packages[*]}"
	mkdir -p "$cache"
	rm -rf "$cache/venv"
	"${PYTHON:-python3}" -m venv "$cache/venv"
	"$cache/venv/bin/pip" install --quiet --disable-pip-version-check uv
	"$cache/venv/bin/uv" pip install --quiet --python "$cache/venv/bin/python" "${packages[@]}"
	echo "${packages[*]}" >"$made"
fi
exec scripts/bench.sh -rivals "$cache/venv/bin/python" "$@"
