#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# The demo with PyTorch: python/examples/train_ddp.py on four ranks, undisturbed, with kills, killed as a whole, and with a spare, with a
# trainer started ahead. The results must be the same to the bit. Wants bin/phalanx and the client library: make demo-torch builds them first.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
python=${PYTHON:-$(scripts/torch-env.sh "${TORCH:-2.15}")}
export PYTHONPATH=$PWD/python/src${PYTHONPATH:+:$PYTHONPATH} CUDA_VISIBLE_DEVICES='' OMP_NUM_THREADS=1
exec "${GO:-go}" run ./scripts/demo -bin bin -torch "$python" -steps "${STEPS:-600}" "$@"
