# SPDX-License-Identifier: Apache-2.0
"""A trainer that trains the same models over phalanx and over gloo, and compares the parameters."""

from __future__ import annotations

import faulthandler
import os
import sys
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import phalanx.torch  # noqa: F401 (makes the backend known)

STEPS = 4


class Numbers(torch.utils.data.Dataset[torch.Tensor]):
    """A data set that worker processes read."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, i: int) -> torch.Tensor:
        return torch.full((8,), float(i % 7)) / 7


def model() -> torch.nn.Module:
    torch.manual_seed(7)
    return torch.nn.Sequential(
        torch.nn.Linear(8, 32),
        torch.nn.Tanh(),
        torch.nn.Linear(32, 32),
        torch.nn.Tanh(),
        torch.nn.Linear(32, 4),
    )


def train(m: torch.nn.Module) -> None:
    o = torch.optim.AdamW(m.parameters(), lr=0.01)
    g = torch.Generator().manual_seed(dist.get_rank())
    for _ in range(STEPS):
        o.zero_grad()
        m(torch.rand(16, 8, generator=g)).square().mean().backward()
        torch.nn.utils.clip_grad_norm_(m.parameters(), 1.0)
        o.step()


def whole(m: torch.nn.Module) -> list[torch.Tensor]:
    return [
        p.full_tensor() if hasattr(p, "full_tensor") else p.detach().clone() for p in m.parameters()
    ]


def ddp() -> list[torch.Tensor]:
    m = DistributedDataParallel(model(), bucket_cap_mb=0.001)
    train(m)
    return whole(m)


def fsdp(*shape: int) -> list[torch.Tensor]:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    names = ("replicate", "shard")[-len(shape) :]
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
    m = model()
    for layer in m:
        if isinstance(layer, torch.nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(m, mesh=mesh)
    train(m)
    out = whole(m)
    save_and_load(m, out)
    return out


def save_and_load(m: torch.nn.Module, want: list[torch.Tensor]) -> None:
    import torch.distributed.checkpoint as dcp

    folder = os.path.join(sys.argv[1], dist.get_backend() + str(dist.get_world_size()))
    state = {"model": m.state_dict()}
    dcp.save(state, checkpoint_id=folder)
    with torch.no_grad():
        for p in m.parameters():
            p.zero_()
    dcp.load(state, checkpoint_id=folder)
    for a, b in zip(whole(m), want, strict=True):
        assert torch.equal(a, b), "a checkpoint is not what was saved"


def functional() -> list[torch.Tensor]:
    from torch.distributed import _functional_collectives as f

    t = torch.arange(8.0) + dist.get_rank()
    group = dist.group.WORLD
    return [
        f.all_reduce(t, "sum", group) + 0,
        f.all_gather_tensor(t, 0, group) + 0,
        f.reduce_scatter_tensor(t, "sum", 0, group) + 0,
        f.broadcast(t, 1, group) + 0,
        f.all_to_all_single(t, None, None, group) + 0,
    ]


def workers() -> list[torch.Tensor]:
    """Loaders with forked and spawned processes, beside collectives."""
    out = []
    spawns = dist.get_rank() == 0 and dist.get_backend() == "phalanx"  # it takes seconds
    for method in ("fork", "spawn" if spawns else "fork"):
        total = torch.zeros(8)
        loader = torch.utils.data.DataLoader(
            Numbers(), 16, num_workers=1, multiprocessing_context=method
        )
        for batch in loader:
            s = batch.sum(0)
            dist.all_reduce(s)
            total += s
        out.append(total)
    assert torch.equal(out[0], out[1])
    return out


def everything(new: bool) -> dict[str, list[torch.Tensor]]:
    out = {"ddp": ddp()}
    if new:
        out["fsdp"] = fsdp(dist.get_world_size())
        out["hsdp"] = fsdp(2, dist.get_world_size() // 2)
        out["functional"] = functional()
    out["workers"] = workers()
    return out


def main() -> None:
    faulthandler.dump_traceback_later(150, exit=True)
    new = hasattr(torch.cpu.Stream(), "record_event")
    results: dict[str, Any] = {}
    for name in ("phalanx", "gloo"):
        dist.init_process_group(name)
        results[name] = everything(new)
        dist.barrier()
        dist.destroy_process_group()
    for what, ours in results["phalanx"].items():
        for a, b in zip(ours, results["gloo"][what], strict=True):
            assert torch.allclose(a, b, rtol=1e-5, atol=1e-6), f"{what}: {a} is not {b}"
    print(f"rank {os.environ['RANK']}: {' '.join(results['phalanx'])} equal", flush=True)


if __name__ == "__main__":
    main()
