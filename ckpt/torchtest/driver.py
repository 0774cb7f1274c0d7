# SPDX-License-Identifier: Apache-2.0
"""The PyTorch side of the tests: reads commands as lines of JSON, answers each with a line of JSON.

Tensors travel as {"name", "dtype", "shape", "bytes"}: PyTorch's name of the dtype and the elements, row-major, in base64.
"""

import base64
import ctypes
import faulthandler
import json
import os
import sys
import traceback
import warnings

warnings.filterwarnings("ignore")

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor


def raw(t):
    """The elements of a tensor as bytes, row-major."""
    t = t.detach().clone(memory_format=torch.contiguous_format).cpu()
    return ctypes.string_at(t.data_ptr(), t.numel() * t.element_size()) if t.numel() else b""


def pack(name, t):
    return {
        "name": name,
        "dtype": str(t.dtype).removeprefix("torch."),
        "shape": list(t.shape),
        "bytes": base64.b64encode(raw(t)).decode(),
    }


def unpack(d):
    t = torch.empty(d["shape"], dtype=getattr(torch, d["dtype"]))
    content = base64.b64decode(d["bytes"])
    assert len(content) == t.numel() * t.element_size(), (d["name"], len(content))
    if content:
        ctypes.memmove(t.data_ptr(), content, len(content))
    return t


def blank(d):
    """A tensor to load into, full of bytes that nobody writes."""
    t = torch.empty(d["shape"], dtype=getattr(torch, d["dtype"]))
    if t.numel():
        ctypes.memset(t.data_ptr(), 0xEE, t.numel() * t.element_size())
    return t


def tree(v):
    """A value as JSON has it, tensors packed, tuples as lists."""
    if isinstance(v, torch.Tensor):
        return pack("", v)
    if isinstance(v, dict):
        return {str(k): tree(x) for k, x in v.items()}
    if isinstance(v, (list, tuple)):
        return [tree(x) for x in v]
    return v


def info():
    names = [n for n in dir(torch) if isinstance(getattr(torch, n), torch.dtype)]
    return {"version": torch.__version__, "dtypes": names, "modules": [m for m in sys.modules if "phalanx" in m]}


def records(paths):
    """Loads records as torch.load does, with and without mmap, and says where PyTorch finds the payload."""
    out = []
    for path in paths:
        t = torch.load(path, weights_only=True)
        m = torch.load(path, weights_only=True, mmap=True)
        assert raw(t) == raw(m) and t.is_contiguous() and m.is_contiguous(), path
        at = torch._C.PyTorchFileReader(path).get_record_offset("data/0")
        out.append(dict(pack(path, t), at=at))
    return out


def large(path):
    """Looks at a few elements of a record that is too large to load."""
    t = torch.load(path, weights_only=True, mmap=True)
    at = torch._C.PyTorchFileReader(path).get_record_offset("data/0")
    return {"shape": list(t.shape), "first": int(t[0]), "last": int(t[-1]), "middle": int(t[t.numel() // 2]), "at": at}


def reader_of(kind, path):
    if kind == "fsspec":
        try:
            from torch.distributed.checkpoint import FsspecReader
        except ImportError:  # before 2.15 it was there
            from torch.distributed.checkpoint._fsspec_filesystem import FsspecReader
        return FsspecReader(path)
    return dcp.FileSystemReader(path)


def load(path, tensors, reader=""):
    """torch.distributed.checkpoint.load, as a user calls it, into blank tensors."""
    state = {d["name"]: blank(d) for d in tensors}
    if reader:
        dcp.load(state, storage_reader=reader_of(reader, path))
    else:
        dcp.load(state, checkpoint_id=path)
    return [pack(n, t) for n, t in state.items()]


def load_nested(path, file):
    """PyTorch's own conversion to a torch.save file, which puts values back into nested dicts and lists."""
    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

    dcp_to_torch_save(path, file)
    return tree(torch.load(file, weights_only=True))


def in_group(rank, f, ranks, port, args):
    faulthandler.dump_traceback_later(150, exit=True)  # a rank that waits for ever says where
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    dist.init_process_group(
        "gloo", store=dist.TCPStore("localhost", port, ranks, False), rank=rank, world_size=ranks
    )
    f(rank, *args)
    dist.barrier()
    # Without destroy_process_group: gloo now and then waits in it for ever for a rank that has gone already.
    sys.stderr.flush()
    os._exit(0)


def group(f, ranks, *args):
    """Runs f(rank, …) on several ranks."""
    store = dist.TCPStore("localhost", 0, ranks, True, wait_for_workers=False)
    # Forked from a process that has imported PyTorch and done nothing else: to import it again takes seconds for each rank,
    # and to fork this process, which has threads by now, may stop the child for ever.
    mp.start_processes(in_group, args=(f, ranks, store.port, args), nprocs=ranks, start_method="forkserver")


def placements(names):
    return [Replicate() if n == "R" else Shard(int(n)) for n in names]


def load_ranked(rank, path, specs, mesh, out):
    device_mesh = init_device_mesh("cpu", tuple(mesh))
    state = {d["name"]: distribute_tensor(torch.zeros_like(blank(d)), device_mesh, placements(d["place"])) for d in specs}
    dcp.load(state, checkpoint_id=path)
    full = [pack(n, t.full_tensor()) for n, t in state.items()]
    if rank == 0:
        with open(out, "w") as f:
            json.dump(full, f)


def load_sharded(path, tensors, mesh, out):
    """Loads into distributed tensors on a mesh of ranks, and gathers them again."""
    ranks = 1
    for n in mesh:
        ranks *= n
    group(load_ranked, ranks, path, tensors, mesh, out)
    with open(out) as f:
        return json.load(f)


def kinds(tensors):
    """Tensors with their elements in memory in many ways."""
    state, want = {}, []
    for d in tensors:
        t = unpack(d)
        kind = d["kind"]
        if kind == "transposed":
            t = t.t()
        elif kind == "sliced":
            t = t[1:, ::2]
        elif kind == "expanded":
            t = t[:1].expand(3, *t.shape[1:])
        elif kind == "parameter":
            t = torch.nn.Parameter(t)
        elif kind == "channels_last":
            t = t.to(memory_format=torch.channels_last)
        state[d["name"]] = t
        want.append(pack(d["name"], t))
    return state, want


def save_ranked(rank, path, tensors):
    state, _ = kinds([d for d in tensors if not d.get("place")])
    ranks = dist.get_world_size()
    for d in tensors:
        if d.get("place"):
            shape = (ranks,) if len(d["place"]) == 1 else (2, ranks // 2)
            state[d["name"]] = distribute_tensor(unpack(d), init_device_mesh("cpu", shape), placements(d["place"]))
    dcp.save(dict(nested(state), other={"lr": 0.25, "name": "ü", "big": 1 << 70}), checkpoint_id=path)


def nested(state):
    return {"model": {"layers": [state]}}


def save(path, tensors, ranks):
    """torch.distributed.checkpoint.save at one rank or more."""
    state, want = kinds(tensors)
    if ranks == 1:
        dcp.save(dict(nested(state), other={"lr": 0.25, "name": "ü", "big": 1 << 70}), checkpoint_id=path)
    else:
        group(save_ranked, ranks, path, tensors)
    return want


def torch_save(path, tensors):
    """One torch.save file for each tensor."""
    state, want = kinds(tensors)
    for i, t in enumerate(state.values()):
        torch.save(t, os.path.join(path, str(i)))
    return want


def pickle_objects(path):
    """torch.save files of what is no tensor, and their sizes."""
    for name, v in {"number": 3, "text": "ü", "list": [1, (2.5, None)], "dict": {"a": True, "t": torch.ones(2)}}.items():
        torch.save(v, os.path.join(path, name))
    return None


def safetensors_load(path):
    """What the safetensors package reads in a file."""
    from safetensors import safe_open
    from safetensors.torch import load_file

    with safe_open(path, "pt") as f:
        metadata = f.metadata()
    return {"tensors": [pack(n, t) for n, t in sorted(load_file(path).items())], "metadata": metadata}


def safetensors_save(path, tensors, metadata):
    from safetensors.torch import save_file

    save_file({d["name"]: unpack(d) for d in tensors}, path, metadata=metadata)


def hf_load(path, tensors):
    """torch.distributed.checkpoint.load of a folder of safetensors files."""
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader

    state = {d["name"]: blank(d) for d in tensors}
    dcp.load(state, storage_reader=HuggingFaceStorageReader(path))
    return [pack(n, t) for n, t in state.items()]


def hf_consolidate(path, out, files):
    """PyTorch's own way from boxes to whole tensors; files has the number of each tensor's file."""
    from torch.distributed.checkpoint._consolidate_hf_safetensors import consolidate_safetensors_files

    consolidate_safetensors_files(path, out, fqn_to_index_mapping=files)


def hf_save_ranked(rank, path, tensors, files):
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter

    ranks = dist.get_world_size()
    state = {}
    for d in tensors:
        t = unpack(d)
        if d.get("place"):
            shape = (ranks,) if len(d["place"]) == 1 else (2, ranks // 2)
            t = distribute_tensor(t, init_device_mesh("cpu", shape), placements(d["place"]))
        state[d["name"]] = t
    writer = HuggingFaceStorageWriter(path, fqn_to_index_mapping=files, save_distributed=True)
    dcp.save(state, storage_writer=writer)


def hf_save(path, tensors, ranks, files):
    """torch.distributed.checkpoint.save into a folder of safetensors files: boxes of several ranks, or whole tensors and an index."""
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter

    if ranks > 1:
        group(hf_save_ranked, ranks, path, tensors, files)
        return
    state = {d["name"]: unpack(d) for d in tensors}
    dcp.save(state, storage_writer=HuggingFaceStorageWriter(path, fqn_to_index_mapping=files), no_dist=True)


def torch_save_nested(path, tensors):
    """One torch.save file with all tensors, two of which share a storage, and with what is no tensor."""
    state, want = kinds(tensors)
    first = tensors[0]["name"]
    value = dict(nested(state), tied=state[first], other={"lr": 0.25, "betas": (0.9, 0.95), 3: None}, size=torch.Size([1]))
    torch.save(value, path)
    return want + [pack(first, state[first])]


def casts(script, out):
    """The digests of PyTorch's casts, as ckpt/elem keeps them."""
    import runpy

    runpy.run_path(script)["main"](out)


COMMANDS = {
    f.__name__: f
    for f in (
        info, records, large, load, load_nested, load_sharded, save, torch_save, pickle_objects, safetensors_load,
        safetensors_save, hf_load, hf_consolidate, hf_save, torch_save_nested, casts,
    )
}


def main():
    mp.set_forkserver_preload(["torch.distributed.checkpoint", "torch.distributed.device_mesh", "torch.distributed.tensor"])
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer
    torch.set_num_threads(1)
    for line in sys.stdin:
        command = json.loads(line)
        try:
            answer = {"ok": COMMANDS[command.pop("do")](**command)}
        except BaseException:
            answer = {"error": traceback.format_exc()}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
