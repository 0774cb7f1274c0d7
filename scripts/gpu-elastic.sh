#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Trains python/tests/mlp.py on a GPU (DEVICE=cuda) or the CPU with two and four ranks, undisturbed and with planted faults, and compares the
# digests. For a machine without Go: it wants bin/phalanx and python/src/phalanx/_lib, which `make build python` makes.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
device=${DEVICE:-cuda}
python=${PYTHON:-python3}
dir=$(mktemp -d /tmp/phalanx-gpu-XXXX)
trap 'rm -rf "$dir"' EXIT
export PYTHONPATH=$PWD/python/src:$PWD/python/tests PYTHONUNBUFFERED=1
steps=(--steps 200 --device "$device")

train() { # train NAME RANKS ARGUMENTS...
	local name=$1 ranks=$2
	shift 2
	if ! timeout 240 bin/phalanx run --dir "$dir/$name" --nproc "$ranks" --warm -- "$python" python/tests/mlp.py "${steps[@]}" "$@" >"$dir/$name.out" 2>&1; then
		tail -40 "$dir/$name.out"
		exit 1
	fi
	grep -o 'final step=.*' "$dir/$name.out" | sort -u >"$dir/$name.final"
	echo "$name: $(cat "$dir/$name.final")"
}

"$python" -c "import torch; print('torch', torch.__version__, torch.cuda.get_device_name() if torch.cuda.is_available() else 'no GPU')"
train quiet 2
mkdir "$dir/marks"
(sleep 45; touch "$dir/go") &
train faults 4 --slow-until "$dir/go" --marks "$dir/marks" --fault kill:10 --fault optimizer:20 --fault raise:30
train scaler 2 --scaler
mkdir "$dir/marks2"
(sleep 25; touch "$dir/go2") &
train scaler-faults 3 --scaler --slow-until "$dir/go2" --marks "$dir/marks2" --fault kill:10 --fault optimizer:20
ls "$dir/marks" "$dir/marks2"
cmp "$dir/quiet.final" "$dir/faults.final"
cmp "$dir/scaler.final" "$dir/scaler-faults.final"
echo "identical on $device"
