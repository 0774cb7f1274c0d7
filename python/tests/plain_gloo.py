# SPDX-License-Identifier: Apache-2.0
"""A trainer of plain torch.distributed: all-reduces over gloo, or another backend, until a file
appears.
"""

from __future__ import annotations

import os
import sys
import time

import torch
import torch.distributed as dist

if len(sys.argv) > 2:
    import phalanx.torch  # noqa: F401 (makes the backend known)

dist.init_process_group(sys.argv[2] if len(sys.argv) > 2 else "gloo")
print(
    f"rank {dist.get_rank()} of {dist.get_world_size()} up pid={os.getpid()} "
    f"generation={os.environ['PHALANX_GENERATION']}",
    flush=True,
)
value = torch.ones(1000)
while True:
    stop = torch.tensor([float(os.path.exists(sys.argv[1]))])
    dist.all_reduce(stop)
    if stop.item() > 0:
        break
    value.fill_(dist.get_rank() + 1)
    dist.all_reduce(value)
    if value[0].item() != sum(range(1, dist.get_world_size() + 1)):
        sys.exit(f"rank {dist.get_rank()} has {value[0].item()}")
    time.sleep(0.01)
group = dist.new_group(ranks=list(range(dist.get_world_size())))  # the store still works
dist.all_reduce(value, group=group)
dist.destroy_process_group()
print(f"rank done world={os.environ['WORLD_SIZE']}", flush=True)
