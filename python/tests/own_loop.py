# SPDX-License-Identifier: Apache-2.0
"""A trainer with a loop of its own, which says where it is."""

import os
import sys
import time

import phalanx.torch
from mlp import once

marks = sys.argv[1]
rank = os.environ["RANK"]
run = phalanx.torch.init()
for i in range(1, 100000):
    if run.step(i):
        print(f"rank {rank} leaves at step {i}", flush=True)
        run.exit()
    if i == 20 and rank == "1" and once(marks, "hung"):
        print("rank 1 hangs", flush=True)
        time.sleep(1000)
    if i == 40:
        run.phase("eval")
        print(f"rank {rank} evaluates", flush=True)
        time.sleep(4)  # longer than a step may take
        print(f"rank {rank} goes on", flush=True)
    time.sleep(0.02)
