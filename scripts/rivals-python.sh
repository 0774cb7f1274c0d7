#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Makes a Python environment with those that this project is measured beside (about 6 GB) in the user's cache, unless it is
# there, and prints the path of its interpreter. PYTHON names the interpreter that it is made of, 3.10 to 3.13.
set -euo pipefail
cache=${XDG_CACHE_HOME:-$HOME/.cache}/phalanx/rivals
packages=(torch==2.15.0 numpy torchft-nightly torch-checkpointing==0.1.1 s3fs)
made=$cache/venv/made-of
if [[ ! -e $made || $(<"$made") != "${packages[*]}" ]]; then
	echo "making $cache/venv: ${packages[*]}" >&2
	mkdir -p "$cache"
	if [[ ! -x $cache/venv/bin/uv ]]; then
		rm -rf "$cache/venv"
		"${PYTHON:-python3}" -m venv "$cache/venv"
		"$cache/venv/bin/pip" install --quiet --disable-pip-version-check uv
	fi
	"$cache/venv/bin/uv" pip install --quiet --python "$cache/venv/bin/python" "${packages[@]}" >&2
	echo "${packages[*]}" >"$made"
fi
echo "$cache/venv/bin/python"
