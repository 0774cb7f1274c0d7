#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# torch-env.sh VERSION makes a virtual environment with PyTorch VERSION (2.15, 2.11 or 2.6: scripts/torch has the exact
# packages), unless it is there already, and prints the path of its python. It is for tests; the programs need no Python.
#
# It wants python3 3.11 to 3.13 (PYTHON names another one), network to a package index (PIP_INDEX_URL or UV_INDEX_URL name
# another one than PyPI) and 6 GB in the cache, XDG_CACHE_HOME or ~/.cache. Several may run at once: one installs, the others
# wait for it.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

fail() {
	echo "torch-env: $*" >&2
	exit 1
}

version=${1:-}
requirements=torch/requirements-$version.txt
if [[ $# != 1 || ! -e $requirements ]]; then
	echo "usage: torch-env.sh VERSION, one of: $(cd torch && printf '%s ' requirements-*.txt | sed 's/requirements-//g; s/\.txt//g')" >&2
	exit 2
fi
uv_version=0.13.9
cache=${XDG_CACHE_HOME:-$HOME/.cache}/phalanx
# The name has the packages in it, so that two checkouts which want different ones do not take them from each other.
sum=$(sha256sum "$requirements")
env=$cache/torch-$version-${sum:0:8}
if [[ -e $env/made ]]; then
	echo "$env/bin/python"
	exit
fi

command -v flock >/dev/null || fail "flock is missing; install util-linux"
mkdir -p "$cache"
exec 9>"$cache/torch.lock"
flock -w 1200 9 || fail "another one holds $cache/torch.lock for 20 minutes; end it and try again"
if [[ -e $env/made ]]; then
	echo "$env/bin/python"
	exit
fi

python=${PYTHON:-python3}
command -v "$python" >/dev/null || fail "$python is missing; install python3 and python3-venv (Debian), 3.11 to 3.13"
"$python" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' ||
	fail "$("$python" --version) is not 3.11 to 3.13, for which PyTorch $version has packages; set PYTHON to one that is"

uv=$(command -v uv || true)
if [[ -z $uv ]]; then
	uv=$cache/uv-$uv_version/bin/uv
	if [[ ! -e $uv ]]; then
		"$python" -c 'import ensurepip' 2>/dev/null || fail "$python cannot make virtual environments; install python3-venv"
		rm -rf "$cache/uv-$uv_version"
		"$python" -m venv "$cache/uv-$uv_version" >&2
		"$cache/uv-$uv_version/bin/pip" install --quiet --disable-pip-version-check "uv==$uv_version" >&2 ||
			{ rm -rf "$cache/uv-$uv_version"; fail "uv $uv_version could not be installed from the package index; see above"; }
	fi
fi

echo "torch-env: installing PyTorch $version into $env" >&2
rm -rf "$env"
"$uv" venv --quiet --python "$(command -v "$python")" "$env" >&2
for attempt in 1 2 3; do # a package index may be away for a moment
	if "$uv" pip install --quiet --python "$env/bin/python" -r "$requirements" >&2; then
		break
	elif ((attempt == 3)); then
		fail "PyTorch $version could not be installed; see above"
	fi
	sleep $((attempt * 5))
done
CUDA_VISIBLE_DEVICES='' "$env/bin/python" -c 'import torch, numpy' >&2 || fail "PyTorch $version was installed and cannot be imported; see above"
touch "$env/made"
echo "$env/bin/python"
