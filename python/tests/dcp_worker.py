# SPDX-License-Identifier: Apache-2.0
"""One rank that saves or loads a small state. test_dcp.py forks it from a process that has imported all of this: that takes seconds."""

from __future__ import annotations

import os
import sys
import time
import traceback
import warnings
from multiprocessing.connection import Connection
from typing import Any

warnings.simplefilter("ignore")

import torch
import torch._dynamo  # what a first step of DDP wants
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

import phalanx.torch  # noqa: F401

try:
    from torch.distributed.fsdp import fully_shard
except ImportError:  # 2.6
    fully_shard = None

from phalanx.torch import _service
from phalanx.torch.dcp import StorageReader, StorageWriter


def trained(kind: str, seed: int, steps: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    """A model after some steps, the same ones at every world size."""
    torch.manual_seed(seed)
    model: nn.Module = nn.Sequential(nn.Linear(30, 17), nn.ReLU(), nn.Linear(17, 5))
    if kind == "fsdp":
        fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    else:
        model = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(4, 30, generator=generator)).square().mean().backward()
        optimizer.step()
    return model, optimizer


def state(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    m, o = get_state_dict(model, optimizer)
    return {"model": m, "optim": o, "extra": {"step": 0, "words": ["none"]}}


def fingerprint(x: Any, prefix: str = "") -> list[str]:
    """Names and contents, whole whoever holds what."""
    if isinstance(x, torch.Tensor):
        whole = x.full_tensor() if hasattr(x, "full_tensor") else x
        flat = whole.detach().double().flatten()
        weights = torch.arange(1, flat.numel() + 1, dtype=torch.float64)
        return [f"{prefix} {tuple(whole.shape)} {float((flat * weights).sum()):.17g} {float(flat.abs().sum()):.17g}"]
    if isinstance(x, dict):
        return [line for k in sorted(x, key=str) for line in fingerprint(x[k], f"{prefix}/{k}")]
    if isinstance(x, (list, tuple)):
        return [line for i, v in enumerate(x) for line in fingerprint(v, f"{prefix}/{i}")]
    return [f"{prefix} {x!r}"]


def work(do: str, url: str, kind: str, bare: bool, says: Connection) -> list[str]:
    if do == "load":
        model, optimizer = trained(kind, 101, 1)
        s = state(model, optimizer)
        if bare:
            dcp.load(s, checkpoint_id=url)
        else:
            dcp.load(s, storage_reader=StorageReader(url))
        set_state_dict(model, optimizer, model_state_dict=s["model"], optim_state_dict=s["optim"])
        return fingerprint(state(model, optimizer) | {"extra": s["extra"]})
    model, optimizer = trained(kind, 1, 3)
    s = state(model, optimizer)
    s["extra"] = {"step": 3, "words": ["a", "b"]}
    lines = fingerprint(s)
    if do == "hang":
        writer = StorageWriter(url)

        def finish(*args: Any, **kwargs: Any) -> None:
            says.send("written")
            time.sleep(600)

        writer.finish = finish  # type: ignore[method-assign]
        dcp.save(s, storage_writer=writer)
    elif do == "async":
        future = dcp.async_save(s, storage_writer=StorageWriter(url))
        with torch.no_grad():  # training goes on
            for q in model.parameters():
                (q.to_local() if hasattr(q, "to_local") else q).zero_()
        future.result()
    elif bare:
        dcp.save(s, checkpoint_id=url)
    else:
        dcp.save(s, storage_writer=StorageWriter(url))
    return lines


def main(environment: dict[str, str], says: Connection, do: str, url: str, kind: str, bare: bool) -> None:
    """A rank's process: it sends the fingerprint of its state, or its traceback as one text."""
    os.environ.update(environment)
    torch.set_num_threads(1)
    try:
        dist.init_process_group("gloo")
        says.send(work(do, url, kind, bare, says))
        dist.barrier()
        dist.destroy_process_group()
    except BaseException:
        says.send(traceback.format_exc())
    sys.stdout.flush()
    _service._close()
    os._exit(0)
