# SPDX-License-Identifier: Apache-2.0
"""Times torch-checkpointing (PyPI, Meta): what a save costs the trainer, when its future is done, and loading.

usage: torch_checkpointing_saves.py FOLDER RANKS MIB DTYPE REPS STEP_MS VARIANT [VARIANT ...]
Variants: sync, async, load. Its file writer does not sync, so "durable" is weaker here. Steps take its lock around the
(empty) optimizer, as it demands, so that waiting for the copy counts.
The last line is RESULT and a JSON object, as of dcp_saves.py.
"""

import importlib.metadata
import os
import shutil
import sys
from typing import Any

import torch
import torch.distributed as dist
from torch_checkpointing.checkpoint_manager import CheckpointManager
from torch_checkpointing.config import AsyncCheckpointSaverConfig, SyncCheckpointSaverConfig

import saves


def run(rank: int, ranks: int, port: int, target: str, mib: int, dtype: str, reps: int, step_ms: float, variants: list[str]) -> None:
    if ranks > 1:
        saves.join(rank, ranks, port)
    torch.set_num_threads(1)

    def barrier() -> None:
        if ranks > 1:
            dist.barrier()

    local = saves.make(rank, ranks, mib, dtype)
    state = {"model": {f"t{i}": x for i, x in enumerate(local)}}
    trainer = saves.Trainer(step_ms)
    version = f"{importlib.metadata.version('torch-checkpointing')}, torch {torch.__version__}"
    out: dict[str, Any] = {"version": version, "loops": trainer.loops, "variants": {}}
    for variant in variants:
        config = AsyncCheckpointSaverConfig() if variant == "async" else SyncCheckpointSaverConfig()
        manager = CheckpointManager(CheckpointManager.Config(save=config))
        records = []
        for i in range(reps + 1):
            path = f"{target}/{variant}-{0 if variant == 'load' else i}"
            trainer.quiet.clear()
            trainer.rest()
            barrier()
            if variant == "load":
                if i == 0:
                    manager.save(path, state)
                    barrier()
                want = [x.clone() for x in local]
                for x in local:
                    x.zero_()
                record = trainer.save(lambda: (manager.load(path, into=state), None)[1])
                if not all(torch.equal(x, w) for x, w in zip(local, want)):
                    raise SystemExit(f"rank {rank}: what was loaded differs")
                del want
            else:
                record = trainer.save(lambda: manager.save(path, state), manager.lock)
            record = saves.slowest(record, ranks)
            barrier()
            if rank == 0:
                record["bytes"] = saves.folder_bytes(path)
                if variant != "load" or i == reps:
                    shutil.rmtree(path, ignore_errors=True)
            records.append(record)
            barrier()
        shared = torch.tensor([saves.shared_mib()])
        if ranks > 1:
            dist.all_reduce(shared)
        out["variants"][variant] = {"saves": records, "shared_mib": float(shared), "quiet_ms": [1e3 * q for q in trainer.quiet]}
        manager.close()
    if rank == 0:
        saves.tell(out)
    barrier()
    os._exit(0)


if __name__ == "__main__":
    where, n, size, kind, times, step, *names = sys.argv[1:]
    os.makedirs(where, exist_ok=True)
    saves.launch(run, int(n), where, int(size), kind, int(times), float(step), names)
