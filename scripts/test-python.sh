#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# test-python.sh [VERSION] [ARGUMENTS FOR PYTEST] builds bin/phalanx and the client library and runs python/tests with PyTorch
# VERSION (2.15 by default) in the environment that torch-env.sh makes. Without arguments it runs all of them.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

version=2.15
if [[ ${1:-} =~ ^[0-9]+\.[0-9]+$ ]]; then
	version=$1
	shift
fi
packages=(pytest==9.2.0)

python=$(scripts/torch-env.sh "$version")
env=$(dirname "$(dirname "$python")")
made=$env/made-pytest
# Several may run at once, of several checkouts: one installs.
exec 9>"$(dirname "$env")/torch.lock"
flock -w 1200 9 || { echo "test-python: another one holds $(dirname "$env")/torch.lock for 20 minutes; end it and try again" >&2; exit 1; }
if [[ ! -e $made || $(<"$made") != "${packages[*]}" ]]; then
	cache=$(dirname "$env")
	uv=$(command -v uv || echo "$cache"/uv-*/bin/uv)
	"$uv" pip install --quiet --python "$python" "${packages[@]}" >&2
	echo "${packages[*]}" >"$made"
fi
exec 9>&-

command -v "${CC:-cc}" >/dev/null || { echo "test-python: ${CC:-cc} is missing; install gcc (Debian), or name another compiler by CC" >&2; exit 1; }
make --no-print-directory build python
export CUDA_VISIBLE_DEVICES='' PYTHONPATH=$PWD/python/src${PYTHONPATH:+:$PYTHONPATH} PATH=$PWD/bin:$PATH
cd python
exec "$python" -m pytest "$@"
