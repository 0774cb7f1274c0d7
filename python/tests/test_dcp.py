# SPDX-License-Identifier: Apache-2.0
"""torch.distributed.checkpoint on published checkpoints, with PyTorch's own saver and loader."""

from __future__ import annotations

import json
import multiprocessing
import multiprocessing.forkserver
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dcp_worker
import pytest
import torch
import torch.distributed.checkpoint as dcp
from running import HERE, ROOT, TIMEOUT, job, phalanx_binary

import phalanx.torch  # noqa: F401
from phalanx.torch import _service
from phalanx.torch.dcp import CheckpointError, NotPublished, StorageReader, StorageWriter
from phalanx.torch.filesystem import PhalanxFileSystem

warnings.filterwarnings("ignore", category=UserWarning)


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Each test has its own helpers, and no daemon."""
    for name in ("PHALANX_SOCKET", "PHALANX_STORE", "PHALANX_JOB", "PHALANX_GENERATION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PHALANX_BINARY", phalanx_binary())
    yield
    _service._close()
    _service._services.clear()


def small() -> dict[str, Any]:
    """A state with everything that may be in one."""
    torch.manual_seed(3)
    return {
        "model": {
            "w": torch.randn(300, 40),
            "turned": torch.randn(5, 3).t(),
            "none": torch.empty(0, 4),
            "scalar": torch.tensor(3.5, dtype=torch.float64),
            "half": torch.randn(7).to(torch.bfloat16),
            "flags": torch.tensor([True, False, True]),
            "part": torch.arange(20)[5:9],
        },
        "list": [{"lr": 0.1, "m": torch.ones(3, dtype=torch.complex64)}, "text"],
        "step": 5,
    }


def zeros(x: Any) -> Any:
    """A state of the same form with other contents."""
    if isinstance(x, torch.Tensor):
        return torch.zeros(x.shape, dtype=x.dtype)
    if isinstance(x, dict):
        return {k: zeros(v) for k, v in x.items()}
    if isinstance(x, list):
        return [zeros(v) for v in x]
    return type(x)()


def same(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(same, a, b))
    return bool(a == b)


def ckpt(store: Path, *arguments: str, code: int = 0) -> str:
    done = subprocess.run(
        [phalanx_binary(), "ckpt", *arguments, "--store", str(store)], capture_output=True, text=True, timeout=TIMEOUT
    )
    assert done.returncode == code, f"{arguments}: {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout


def folder_of(store: Path, step: int) -> Path:
    found = [p for p in (store / "j").iterdir() if p.name.startswith(f"step-{step}-")]
    assert len(found) == 1, found
    return found[0]


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


LONG = 3 * TIMEOUT  # several processes of PyTorch on a machine that may do other work


@pytest.fixture(scope="module")
def start() -> Iterator[Callable[..., Ranks]]:
    """Starts the ranks of a world, forked from one process that has imported everything."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["dcp_worker"])
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = f"{HERE}:{ROOT / 'python' / 'src'}"  # where it looks for it; sys.path is not passed on
    multiprocessing.forkserver.ensure_running()
    if before is None:
        del os.environ["PYTHONPATH"]
    else:
        os.environ["PYTHONPATH"] = before
    made: list[Ranks] = []

    def make(world: int, do: str, url: str, kind: str = "ddp", bare: bool = False) -> Ranks:
        made.append(Ranks(context, world, do, url, kind, bare))
        return made[-1]

    yield make
    for r in made:
        r.kill()


class Ranks:
    """Processes of one world."""

    def __init__(self, context: Any, world: int, *arguments: Any) -> None:
        common = {
            "PHALANX_BINARY": phalanx_binary(),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(free_port()),
            "WORLD_SIZE": str(world),
        }
        self.said, self.processes = [], []
        for r in range(world):
            here, there = context.Pipe(duplex=False)
            p = context.Process(target=dcp_worker.main, args=(common | {"RANK": str(r)}, there, *arguments), daemon=True)
            p.start()
            there.close()
            self.said.append(here)
            self.processes.append(p)

    def hear(self, rank: int) -> Any:
        assert self.said[rank].poll(LONG), f"rank {rank} says nothing within {LONG:.0f} s"
        return self.said[rank].recv()

    def wait(self) -> list[str]:
        """What the state is, which all ranks say alike."""
        said = [self.hear(r) for r in range(len(self.said))]
        for s in said:
            assert isinstance(s, list), s
            assert s == said[0]
        for p in self.processes:
            p.join(LONG)
            assert p.exitcode == 0
        return list(said[0])

    def kill(self) -> None:
        for p in self.processes:
            if p.is_alive():
                p.kill()
            p.join(TIMEOUT)


@pytest.mark.parametrize("how", ["bare", "writer", "async"])
def test_one_process(folder: Path, how: str) -> None:
    """Saved, loaded in each way, without us, verified and converted; published once."""
    store = folder / "store"
    store.mkdir()
    url = f"phalanx://j/step-7?store={store}"
    s = small()
    if how == "bare":
        dcp.save(s, checkpoint_id=url)
    elif how == "writer":
        w = StorageWriter(url, bucket_bytes=10_000, threads=3)
        dcp.save(s, storage_writer=w)
        assert w.published is not None and w.published["step"] == 7
    else:
        w = StorageWriter(url)
        future = dcp.async_save(s, storage_writer=w)
        kept = s["model"]["w"].clone()
        s["model"]["w"].zero_()  # training goes on: what is saved is what was
        future.result()
        s["model"]["w"] = kept
    for load in ("bare", "reader", "plain"):
        t = zeros(s)
        if load == "bare":
            dcp.load(t, checkpoint_id=f"phalanx://j/latest?store={store}")
        elif load == "reader":
            r = StorageReader(f"phalanx://j?store={store}", threads=3)
            dcp.load(t, storage_reader=r)
            assert r.opened["step"] == 7
        else:
            dcp.load(t, checkpoint_id=str(folder_of(store, 7)))
        assert same(s, t), load
    assert "ok" in ckpt(store, "verify", "--job", "j")
    out = folder / "model.safetensors"
    ckpt(store, "restore", "7", str(out), "--job", "j")
    found = {t["name"]: t for t in json.loads(ckpt(store, "inspect", str(out), "--json"))["tensors"]}
    assert found["model.w"]["shape"] == [300, 40]
    # As DCP again: values and nested names stay.
    ckpt(store, "restore", "7", str(folder / "again"), "--job", "j")
    t = zeros(s)
    dcp.load(t, checkpoint_id=str(folder / "again"))
    assert same(s, t)
    with pytest.raises(BaseException, match=r"step 7 of this branch is published"):
        dcp.save(s, storage_writer=StorageWriter(url))
    with pytest.raises(BaseException, match=r"step 7 of this branch is published"):
        dcp.save(s, checkpoint_id=url)
    dcp.save(s, storage_writer=StorageWriter(f"phalanx://j/step-2?store={store}&branch=new"))
    assert json.loads(ckpt(store, "latest", "--job", "j", "--json"))["step"] == 2


@pytest.mark.parametrize(("kind", "save", "bare"), [("ddp", "save", True), ("fsdp", "async", False)])
def test_ranks(folder: Path, start: Callable[..., Ranks], kind: str, save: str, bare: bool) -> None:
    """Saved by two ranks, loaded by one and by four."""
    if kind == "fsdp" and not hasattr(torch.Stream, "record_event"):
        pytest.skip("FSDP2 on CPU does not work in this PyTorch itself")
    store = folder / "store"
    store.mkdir()
    was = start(2, save, f"phalanx://j/step-3?store={store}", kind, bare).wait()
    assert was
    assert "ok" in ckpt(store, "verify", "--job", "j")
    names = {p.name for p in folder_of(store, 3).iterdir() if p.name.endswith(".distcp")}
    assert any(n.startswith("__0_") for n in names) and any(n.startswith("__1_") for n in names)
    assert start(1, "load", f"phalanx://j/step-3?store={store}", kind, not bare).wait() == was
    assert start(4, "load", f"phalanx://j/latest?store={store}", kind, bare).wait() == was


def test_flipped_byte(folder: Path) -> None:
    """Damage is named by each way of loading, and never loaded."""
    store = folder / "store"
    store.mkdir()
    url = f"phalanx://j/step-1?store={store}"
    s = small()
    dcp.save(s, storage_writer=StorageWriter(url))
    file = folder_of(store, 1) / "__0_0.distcp"
    content = bytearray(file.read_bytes())
    at = bytes(content).index(s["model"]["w"].numpy().tobytes()[:64]) + 17
    content[at] ^= 1
    file.chmod(0o644)
    file.write_bytes(content)
    for load in (
        lambda t: dcp.load(t, storage_reader=StorageReader(url)),
        lambda t: dcp.load(t, checkpoint_id=url),
    ):
        with pytest.raises(BaseException, match=r"(?s)__0_0\.distcp.*model\.w"):
            load(zeros(s))
    t = zeros(s)
    dcp.load(t, checkpoint_id=str(folder_of(store, 1)))
    assert not same(s, t), "DCP itself looks at no checksum"
    assert "model.w" in ckpt(store, "verify", "1", "--job", "j", code=5)
    # The value's bytes are protected as well.
    content[at] ^= 1
    value = next(v for v in json.loads(ckpt(store, "inspect", "1", "--job", "j", "--json"))["objects"] if v["name"] == "step")
    content[value["range"][0] + 20] ^= 1
    file.with_name(value["object"]).write_bytes(content)
    with pytest.raises(BaseException, match="step"):
        dcp.load(zeros(s), storage_reader=StorageReader(url))


def test_killed_in_the_middle(folder: Path, start: Callable[..., Ranks]) -> None:
    """Ranks that are killed when everything is written and nothing published leave nothing that anybody sees."""
    store = folder / "store"
    store.mkdir()
    ranks = start(2, "hang", f"phalanx://j/step-5?store={store}")
    assert ranks.hear(0) == "written"
    ranks.kill()
    assert list(folder_of(store, 5).glob("*.distcp"))
    with pytest.raises(BaseException, match="no restorable checkpoint"):
        dcp.load(zeros(small()), storage_reader=StorageReader(f"phalanx://j/latest?store={store}"))
    ckpt(store, "latest", "--job", "j", code=3)
    # The next save of the same step is another attempt.
    dcp.save(small(), storage_writer=StorageWriter(f"phalanx://j/step-5?store={store}"))
    assert json.loads(ckpt(store, "latest", "--job", "j", "--json"))["step"] == 5
    ckpt(store, "gc", "--job", "j", "--grace", "0s")
    ckpt(store, "gc", "--job", "j", "--grace", "0s")
    assert folder_of(store, 5).is_dir(), "what was killed is gone"
    assert "ok" in ckpt(store, "verify", "--job", "j")


def test_two_savers(folder: Path) -> None:
    """Two that save one step at once: one publishes, the other is told."""
    store = folder / "store"
    store.mkdir()
    url = f"phalanx://j/step-9?store={store}"
    s = small()
    met = threading.Barrier(2)
    said: list[str] = []

    class Meeting(StorageWriter):
        def finish(self, *a: Any, **k: Any) -> None:
            met.wait(TIMEOUT)
            super().finish(*a, **k)

    def save() -> None:
        try:
            dcp.save(s, storage_writer=Meeting(url), no_dist=True)
            said.append("published")
        except BaseException as e:
            said.append(str(e))

    threads = [threading.Thread(target=save) for _ in range(2)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(TIMEOUT)
    lost = next(x for x in said if x != "published")
    assert len(said) == 2 and said.count("published") == 1, said
    assert "Superseded" in lost and ("step 9 of this branch is published" in lost or "another attempt took the number" in lost)
    t = zeros(s)
    dcp.load(t, checkpoint_id=url)
    assert same(s, t)


def test_in_a_plain_job(folder: Path) -> None:
    """Under run --plain the daemons serve the job's own store, and its retention counts."""
    script = [sys.executable, str(HERE / "dcp_job.py")]
    with job(folder, script, "--plain", "--nproc", "2", "--job", "j", "--store", str(folder / "store"), "--keep", "2") as j:
        assert j.wait(LONG) == 0, j.output
        assert "loaded 5" in j.output, j.output
    steps = [c["step"] for c in json.loads(ckpt(folder / "store", "ls", "--job", "j", "--json")) if c["state"] == "published"]
    assert steps[-1] == 5 and len(steps) <= 3, steps
    assert "ok" in ckpt(folder / "store", "verify", "--job", "j")


def test_reads_part(folder: Path) -> None:
    """A loader that wants a box gets that box, and other dtypes are converted."""
    store = folder / "store"
    store.mkdir()
    url = f"phalanx://j/step-1?store={store}"
    w = torch.randn(64, 32)
    dcp.save({"w": w}, storage_writer=StorageWriter(url, object_bytes=4096))
    t = {"w": torch.zeros(64, 32, dtype=torch.float64).t().contiguous().t()}
    dcp.load(t, storage_reader=StorageReader(url))
    assert torch.equal(t["w"], w.double())
    s = _service.service(str(store))
    o = s.call("open", job="j", which="step-1")
    assert len(o["tensors"][0]["chunks"]) > 1
    into = torch.zeros(3, 5)
    f = s.read("j", o["attempt"], [("w", [7, 11], [3, 5])], [])
    f.fill(memoryview(into.numpy()).cast("B"))
    f.end()
    assert torch.equal(into, w[7:10, 11:16])


def test_filesystem(folder: Path) -> None:
    """The protocol as others than DCP use it."""
    store = folder / "store"
    store.mkdir()
    q = f"?store={store}"
    dcp.save(small(), checkpoint_id=f"phalanx://j/step-1{q}")
    fs = PhalanxFileSystem()
    assert fs.exists(f"phalanx://j/step-1{q}") and not fs.exists(f"phalanx://j/step-2{q}")
    (one,) = fs.ls(f"phalanx://j{q}")
    assert one["type"] == "directory" and one["step"] == 1
    files = {f["name"].partition("?")[0].rpartition("/")[2]: f["size"] for f in fs.ls(one["name"])}
    assert set(files) == {"__0_0.distcp", ".metadata"}
    assert fs.ls(one["name"], detail=False)[0] in [f["name"] for f in fs.ls(fs.ls(one["name"], detail=False)[0])]
    with fs.open(f"phalanx://j/step-1{q}/__0_0.distcp", "rb") as f:
        assert f.read() == (folder_of(store, 1) / "__0_0.distcp").read_bytes()
        f.seek(-5, 2)
        assert len(f.read()) == 5
    with pytest.raises(PermissionError, match="phalanx ckpt forget"):
        fs.rm(f"phalanx://j/step-1{q}")
    with pytest.raises(PermissionError, match="phalanx ckpt copy"):
        fs.mv(f"phalanx://j/step-1{q}", f"phalanx://j/step-2{q}")
    with pytest.raises(FileNotFoundError):
        fs.open(f"phalanx://j/step-4{q}/.metadata", "rb")
    # An entry point is enough where nothing of ours is imported.
    info = folder / "site" / "phalanx-0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: phalanx\nVersion: 0\n")
    (info / "entry_points.txt").write_text("[fsspec.specs]\nphalanx = phalanx.torch.filesystem:PhalanxFileSystem\n")
    code = (
        "import torch, torch.distributed.checkpoint as d; t = {'model': {'w': torch.zeros(300, 40)}}; "
        f"d.load(t, checkpoint_id='phalanx://j/latest{q}'); print(float(t['model']['w'].sum()))"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        env=os.environ | {"PYTHONPATH": f"{info.parent}:{ROOT / 'python' / 'src'}"},
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
    )
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) == float(small()["model"]["w"].sum())


def test_refusals(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bad input: one clear error each, and nothing is left."""
    store = folder / "store"
    store.mkdir()
    for url, says in {
        "phalanx://j/latest": "needs a step",
        "phalanx://a/b/step-1": "want phalanx://",
        "phalanx://j/step-1?stor=x": "unknown parameter 'stor'",
        "phalanx://j/step-1?branch=7": "branch=new",
        "phalanx://.j/step-1": "not beginning with a dot",
    }.items():
        with pytest.raises(ValueError, match=says):
            _ = _service.parse(url).step
    assert StorageWriter.validate_checkpoint_id("phalanx://step-1") and not StorageWriter.validate_checkpoint_id("/tmp/x")
    assert not StorageWriter.validate_checkpoint_id("phalanx://latest") and StorageReader.validate_checkpoint_id("phalanx://latest")
    with pytest.raises(CheckpointError, match="no store for checkpoints"):
        _service.service()
    with pytest.raises(CheckpointError, match="ftp"):
        _service.service("ftp://x/y")
    with pytest.raises(NotPublished):
        StorageReader(f"phalanx://j/step-1?store={store}").read_metadata()
    url = f"phalanx://j/step-1?store={store}"
    with pytest.raises(BaseException, match="which cannot be stored"):
        dcp.save({"q": torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8)}, storage_writer=StorageWriter(url))
    with pytest.raises(BaseException, match="only strided"):
        dcp.save({"s": torch.eye(3).to_sparse()}, storage_writer=StorageWriter(url))
    assert not list(store.glob("j/commits/*"))
    monkeypatch.setenv("PHALANX_BINARY", "/nowhere/phalanx")
    with pytest.raises(OSError):
        _service.service(str(folder / "other"))
    monkeypatch.setenv("PHALANX_SOCKET", str(folder / "gone"))
    with pytest.raises(CheckpointError, match="nobody serves checkpoints"):
        _service.service().call("list")


def test_helper_ends_with_us(folder: Path) -> None:
    """A helper does not outlive the program, however that ends."""
    code = "from phalanx.torch import _service; import os, sys; print(_service.service(sys.argv[1]).helper.process.pid, flush=True); os.kill(os.getpid(), 9)"
    done = subprocess.run(
        [sys.executable, "-c", code, str(folder / "store")],
        env=os.environ | {"PYTHONPATH": str(ROOT / "python" / "src")},
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    pid = int(done.stdout)
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                break
        except FileNotFoundError:
            break
        time.sleep(0.02)
    else:
        raise AssertionError(f"helper {pid} lives")


def test_staging_is_reused(folder: Path) -> None:
    """States are staged into the memory of those that are no longer saved, and two at once do not meet."""
    store = folder / "store"
    store.mkdir()
    w = StorageWriter()
    a = w.stage({"x": torch.ones(1000), "y": [torch.zeros(3), "z"]})
    b = w.stage({"x": torch.full((1000,), 2.0), "y": [torch.zeros(3), "z"]})
    assert a["x"].sum() == 1000 and b["x"].sum() == 2000
    where = a["x"].data_ptr()
    del a
    c = w.stage({"x": torch.full((1000,), 3.0), "y": [torch.zeros(3), "z"]})
    assert c["x"].data_ptr() == where and b["x"].sum() == 2000
    for step in (1, 2, 3):
        dcp.async_save({"x": torch.full((1000,), float(step))}, checkpoint_id=f"phalanx://j/step-{step}?store={store}", storage_writer=w).result()
    for step in (1, 2, 3):
        t = {"x": torch.zeros(1000)}
        dcp.load(t, checkpoint_id=f"phalanx://j/step-{step}?store={store}")
        assert t["x"].sum() == 1000 * step


