# SPDX-License-Identifier: Apache-2.0
"""A trainer without steps that saves and loads by bare URLs; test_dcp.py runs it under `phalanx run --plain`."""

from __future__ import annotations

import warnings

warnings.simplefilter("ignore")

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

import phalanx.torch  # noqa: F401
from phalanx.torch.dcp import StorageWriter

dist.init_process_group("gloo")
state = {"w": torch.arange(1000.0), "step": 0}
for step in range(1, 6):
    state["w"] += 1
    state["step"] = step
    if step % 2:
        dcp.save(state, checkpoint_id=f"phalanx://step-{step}")
    else:
        dcp.async_save(state, storage_writer=StorageWriter(f"phalanx://step-{step}")).result()
other = {"w": torch.zeros(1000), "step": 0}
dcp.load(other, checkpoint_id="phalanx://latest")
assert torch.equal(other["w"], state["w"])
print("loaded", other["step"], flush=True)
dist.barrier()
dist.destroy_process_group()
