# SPDX-License-Identifier: Apache-2.0
"""Times torch.distributed.checkpoint (DCP): what a save costs the trainer, when it is durable, and loading.

usage: dcp_saves.py TARGET RANKS MIB DTYPE REPS STEP_MS VARIANT [VARIANT ...]
TARGET is a folder or s3://BUCKET/PREFIX (through fsspec and s3fs; AWS_ENDPOINT_URL and the keys from the environment).
Variants: save, save-threads (a writer thread for each core), async, async-stager (one DefaultStager for all saves),
async-process, async-process-shm, load. Each rank holds its rows of 16 tensors as DTensor Shard(0); plain tensors when alone.
The last line is RESULT and a JSON object: for each variant its saves, the first one first; seconds, of the slowest rank.
"""

import os
import shutil
import sys
import time
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard

import saves


def storage(target: str, variant: str) -> dict[str, Any]:
    """Arguments of save; DCP's own default where that does."""
    threads = os.cpu_count() if variant == "save-threads" else 1
    if target.startswith("s3://"):
        from torch.distributed.checkpoint.fsspec_filesystem import FsspecWriter

        return {"storage_writer": FsspecWriter(target, thread_count=threads)}
    if threads > 1:
        return {"storage_writer": dcp.FileSystemWriter(target, thread_count=threads)}
    return {"checkpoint_id": target}


def load(target: str, state: dict[str, Any]) -> None:
    if target.startswith("s3://"):
        from torch.distributed.checkpoint.fsspec_filesystem import FsspecReader

        dcp.load(state, storage_reader=FsspecReader(target))
    else:
        dcp.load(state, checkpoint_id=target)


def remove(target: str) -> None:
    if target.startswith("s3://"):
        import s3fs

        fs = s3fs.S3FileSystem()
        fs.invalidate_cache()
        if fs.exists(target):
            fs.rm(target, recursive=True)
    else:
        shutil.rmtree(target, ignore_errors=True)


def stored_bytes(target: str) -> int:
    if target.startswith("s3://"):
        import s3fs

        fs = s3fs.S3FileSystem()
        fs.invalidate_cache()
        return sum(fs.du(target, total=False).values())
    return saves.folder_bytes(target)


def run(rank: int, ranks: int, port: int, target: str, mib: int, dtype: str, reps: int, step_ms: float, variants: list[str]) -> None:
    saves.join(rank, ranks, port)
    mesh = init_device_mesh("cpu", (ranks,))
    local = saves.make(rank, ranks, mib, dtype)
    state = {"m": {f"t{i}": DTensor.from_local(x, mesh, [Shard(0)]) if ranks > 1 else x for i, x in enumerate(local)}}
    own = dist.new_group() if ranks > 1 else None  # background collectives must not meet ours on one group
    trainer = saves.Trainer(step_ms)
    out: dict[str, Any] = {"version": torch.__version__, "loops": trainer.loops, "variants": {}}
    for variant in variants:
        stager = None
        if variant in ("async-stager", "async-process-shm"):
            # Pinned memory needs a GPU's driver.
            stager = DefaultStager(StagingOptions(use_pinned_memory=False, use_shared_memory="shm" in variant, use_async_staging=False, use_non_blocking_copy=False))
        records = []
        for _ in range(reps + 1):  # the first one is told apart
            path = f"{target}/{variant}"
            dist.barrier()
            if rank == 0 and variant != "load":
                remove(path)
            dist.barrier()
            trainer.quiet.clear()
            trainer.rest()
            dist.barrier()
            if variant == "load":
                if not records:
                    if rank == 0:
                        remove(path)
                    dist.barrier()
                    dcp.save(state, **storage(path, "save"))
                    dist.barrier()
                want = [x.clone() for x in local]
                for x in local:
                    x.zero_()
                dist.barrier()
                record = trainer.save(lambda: load(path, state))
                if not all(torch.equal(x, w) for x, w in zip(local, want)):
                    raise SystemExit(f"rank {rank}: what was loaded differs")
                del want
            elif variant in ("save", "save-threads"):
                record = trainer.save(lambda: (dcp.save(state, **storage(path, variant)), None)[1])
            else:
                kind = AsyncCheckpointerType.PROCESS if "process" in variant else AsyncCheckpointerType.THREAD

                def call() -> Any:
                    r = dcp.async_save(state, process_group=own, async_checkpointer_type=kind, **({"async_stager": stager} if stager else {}), **storage(path, variant))
                    return getattr(r, "upload_completion", r)

                record = trainer.save(call)
            record = saves.slowest(record, ranks)
            if rank == 0:
                record["bytes"] = stored_bytes(path)
            records.append(record)
        shared = torch.tensor([saves.shared_mib()])
        if stager is not None:
            stager.close()
        dist.all_reduce(shared)
        out["variants"][variant] = {"saves": records, "shared_mib": float(shared), "quiet_ms": [1e3 * q for q in trainer.quiet]}
        dist.barrier()
        if rank == 0:
            remove(path)
    if rank == 0:
        saves.tell(out)
    dist.barrier()
    os._exit(0)  # the checkpoint processes are daemons of this one


if __name__ == "__main__":
    where, n, size, kind, times, step, *names = sys.argv[1:]
    if not where.startswith("s3://"):
        os.makedirs(where, exist_ok=True)
    saves.launch(run, int(n), where, int(size), kind, int(times), float(step), names)
