# SPDX-License-Identifier: Apache-2.0
"""The fsspec protocol phalanx: published checkpoints as folders of files, so that torch.distributed.checkpoint takes a bare URL.

    dcp.save(state, checkpoint_id="phalanx://step-100")
    dcp.load(state, checkpoint_id="phalanx://latest")

What DCP writes is taken apart into its records as it comes; renaming .metadata.tmp to .metadata publishes the checkpoint.
phalanx.torch.dcp does the same with fewer copies.
"""

from __future__ import annotations

import io
import os
import threading
from typing import Any

from fsspec.spec import AbstractFileSystem

from ._save import Save, begin
from ._service import CheckpointError, NotPublished, Service, Target, attempts, parse, service

_METADATA = ".metadata"
_TEMPORARY = ".metadata.tmp"
_FLUSH = 256 << 20
"""Bytes of a file that are kept before its complete records are handed over."""


class PhalanxFileSystem(AbstractFileSystem):  # type: ignore[misc]
    """Published checkpoints: phalanx://[JOB/]WHICH[/FILE]. Folders that are written are seen when they are published."""

    protocol = "phalanx"
    root_marker = ""
    cachable = False
    local_file = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._saves: dict[str, _Folder] = {}
        self._lock = threading.Lock()  # guards _saves

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        if isinstance(path, list):
            return [cls._strip_protocol(p) for p in path]
        return os.fspath(path).removeprefix("phalanx://").rstrip("/")

    def unstrip_protocol(self, name: str) -> str:
        return "phalanx://" + self._strip_protocol(name)

    # -- writing

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        """Begins a save. FileExistsError says why it could not be published."""
        t = parse(path)
        save = begin(t.folder())
        with self._lock:
            self._saves[t.key] = _Folder(save)

    def mkdir(self, path: str, create_parents: bool = True, **kwargs: Any) -> None:
        """Begins a save."""
        self.makedirs(path)

    def _writing(self, t: Target) -> _Folder:
        with self._lock:
            folder = self._saves.get(t.key)
        if folder is None:
            self.makedirs(self._strip_protocol(f"{t.job + '/' if t.job else ''}{t.which}") + (f"?store={t.store}" if t.store else ""))
            with self._lock:
                folder = self._saves[t.key]
        return folder

    def _open(
        self,
        path: str,
        mode: str = "rb",
        block_size: int | None = None,
        autocommit: bool = True,
        cache_options: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> Any:
        t = parse(path)
        if not t.file:
            raise IsADirectoryError(f"phalanx://{path}: is a checkpoint; name a file in it")
        if mode in ("r", "rb"):
            return self._reading(t)
        if mode not in ("w", "wb", "x", "xb"):
            raise ValueError(f"phalanx://{path}: mode {mode!r}: files are written once, from their beginning")
        folder = self._writing(t)
        if t.file == _TEMPORARY:
            return _Index(folder)
        if t.file == _METADATA:
            return _Index(folder, publish=True)
        if t.file.endswith(_METADATA) or t.file.endswith(_TEMPORARY):
            raise ValueError(
                f"phalanx://{path}: an index of one rank cannot be published: save with use_collectives=True"
            )
        return _Records(folder.save, t.file)

    def mv(self, path1: str, path2: str, recursive: bool = False, maxdepth: int | None = None, **kwargs: Any) -> None:
        """Publishes a checkpoint, when its index gets its name. Nothing else can be moved."""
        a, b = parse(path1), parse(path2)
        if a.key != b.key or a.file != _TEMPORARY or b.file != _METADATA:
            raise PermissionError(f"phalanx://{path1}: published checkpoints are not moved; phalanx ckpt copy copies them")
        with self._lock:
            folder = self._saves.get(a.key)
        if folder is None or folder.index is None:
            raise NotPublished(f"phalanx://{path1}: was not written by this process")
        folder.publish()
        with self._lock:
            self._saves.pop(a.key, None)

    def rename(self, path1: str, path2: str, **kwargs: Any) -> None:
        self.mv(path1, path2)

    move = rename

    def rm_file(self, path: str) -> None:
        """Gives up a file of a save under way. Published checkpoints are removed by retention alone."""
        t = parse(path)
        with self._lock:
            folder = self._saves.get(t.key)
        if folder is None:
            raise PermissionError(f"phalanx://{path}: is not removed one by one: phalanx ckpt forget {t.which}")
        if t.file == _TEMPORARY:
            folder.index = None  # what records were handed over is never named, so nobody sees it

    def rm(self, path: Any, recursive: bool = False, maxdepth: int | None = None) -> None:
        for p in path if isinstance(path, list) else [path]:
            self.rm_file(p)

    _rm = rm_file

    def cp_file(self, path1: str, path2: str, **kwargs: Any) -> None:
        raise PermissionError("checkpoints are copied by phalanx ckpt copy, or ckpt convert to take them out")

    # -- reading

    def _find(self, t: Target, brief: bool = False) -> tuple[Service, dict[str, Any]]:
        s = service(t.store)
        return s, s.call("open", job=t.job, which=t.which, brief=brief)

    def _reading(self, t: Target) -> Any:
        s, o = self._find(t)
        for f in o["files"]:
            if f["name"] == t.file:
                return io.BufferedReader(_Published(s, o["job"], o["attempt"], t.file, f["size_bytes"]), 1 << 16)
        raise NotPublished(f"phalanx://{o['job']}/{o['attempt']} has no file {t.file}")

    def info(self, path: str, **kwargs: Any) -> dict[str, Any]:
        t = parse(path)
        name = self._strip_protocol(path)
        if not t.file and not self._named(path):
            return {"name": name, "size": 0, "type": "directory"}
        _, o = self._find(t, brief=not t.file)
        if not t.file:
            return {"name": name, "size": o["size_bytes"], "type": "directory"}
        for f in o["files"]:
            if f["name"] == t.file:
                return {"name": name, "size": f["size_bytes"], "type": "file"}
        raise NotPublished(f"phalanx://{path}: is not there")

    @staticmethod
    def _named(path: str) -> bool:
        """Whether a path names a checkpoint, and not a job."""
        last = path.partition("?")[0].rstrip("/").rpartition("/")[2]
        return last == "latest" or last.startswith("step-")

    def exists(self, path: str, **kwargs: Any) -> bool:
        """Whether it is published."""
        try:
            self.info(self._strip_protocol(path))
        except FileNotFoundError:
            return False
        return True

    def ls(self, path: str, detail: bool = True, **kwargs: Any) -> list[Any]:
        """The files of a checkpoint, or the checkpoints of a job."""
        path = self._strip_protocol(path)
        t = parse(path)
        head, mark, query = path.partition("?")
        if t.file:
            out = [self.info(path)]
        elif self._named(path):
            _, o = self._find(t)
            out = [{"name": f"{head}/{f['name']}{mark}{query}", "size": f["size_bytes"], "type": "file"} for f in o["files"]]
        else:
            prefix = head + "/" if head else ""
            out = [
                {"name": f"{prefix}{attempt}{mark}{query}", "size": 0, "type": "directory", "step": step}
                for step, attempt in attempts(service(t.store), t.job)
            ]
        return out if detail else [o["name"] for o in out]

    def created(self, path: str) -> Any:
        raise NotImplementedError("phalanx ckpt inspect says when a checkpoint was published")

    modified = created


class _Folder:
    """A save under way as DCP sees it."""

    def __init__(self, save: Save) -> None:
        self.save = save
        self.index: bytes | None = None

    def publish(self) -> None:
        assert self.index is not None
        self.save.publish(self.index)


class _Index(io.BytesIO):
    """The index while it is written: it is data of the coordinator until it is published."""

    def __init__(self, folder: _Folder, publish: bool = False) -> None:
        super().__init__()
        self._folder, self._publish = folder, publish
        self._file = os.memfd_create("phalanx-index", os.MFD_CLOEXEC)  # something that can be synced

    def fileno(self) -> int:
        return self._file

    def __exit__(self, kind: Any, *rest: Any) -> None:
        if kind is not None:
            self._publish, self._file_failed = False, True
        self.close()

    _file_failed = False

    def close(self) -> None:
        if self.closed:
            return
        if not self._file_failed:
            self._folder.index = self.getvalue()
        os.close(self._file)
        super().close()
        if self._publish:
            self._folder.publish()


class _Records(io.RawIOBase):
    """A file of records. DCP asks where it is before and after each one: those are their bounds."""

    def __init__(self, save: Save, file: str) -> None:
        super().__init__()
        self._save, self._file = save, file
        self._writer = int(file[2:].partition("_")[0])
        self._fd = os.memfd_create("phalanx-records", os.MFD_CLOEXEC)
        self._base = 0  # of the file: where the memory begins
        self._size = 0  # of the file
        self._marks = [0]
        self._failed = False

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return False

    def fileno(self) -> int:
        return self._fd

    def write(self, b: Any) -> int:
        view = memoryview(b).cast("B")
        n = 0
        while n < len(view):
            n += os.pwrite(self._fd, view[n:], self._size + n - self._base)
        self._size += n
        return n

    def tell(self) -> int:
        if self._size > self._marks[-1]:
            self._marks.append(self._size)
            if self._size - self._base >= _FLUSH:
                self._hand_over()
        return self._size

    def _hand_over(self) -> None:
        if self._size > self._marks[-1]:
            self._marks.append(self._size)
        records = [
            {"file": self._file, "at": a, "length": b - a, "offset": a - self._base}
            for a, b in zip(self._marks, self._marks[1:], strict=False)
        ]
        if records:
            name = f"/proc/{os.getpid()}/fd/{self._fd}"
            self._save.write(self._writer, self._save.batch(), name, records=records)
        os.ftruncate(self._fd, 0)
        self._base, self._marks = self._size, [self._size]

    def __exit__(self, kind: Any, *rest: Any) -> None:
        self._failed = kind is not None
        self.close()

    def close(self) -> None:
        if self.closed:
            return
        try:
            if not self._failed:
                self._hand_over()
        finally:
            os.close(self._fd)
            super().close()


class _Published(io.RawIOBase):
    """A file of a published checkpoint. It is read by whole records, which are verified; the last two are kept."""

    def __init__(self, s: Service, job: str, attempt: str, name: str, size: int) -> None:
        super().__init__()
        self._service, self._job, self._attempt, self._name, self._size = s, job, attempt, name, size
        self._at = 0
        self._kept: list[tuple[int, bytes]] = []

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        if base + offset < 0:
            raise ValueError(f"seek to {base + offset}")
        self._at = base + offset
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, b: Any) -> int:
        view = memoryview(b).cast("B")
        n = 0
        while n < len(view) and self._at < self._size:
            at, content = self._record(self._at)
            part = content[self._at - at :][: len(view) - n]
            view[n : n + len(part)] = part
            n += len(part)
            self._at += len(part)
        return n

    def _record(self, at: int) -> tuple[int, memoryview]:
        for first, content in self._kept:
            if first <= at < first + len(content):
                return first, memoryview(content)
        first, content = self._service.file(self._job, self._attempt, self._name, at)
        if not first <= at < first + len(content):
            raise CheckpointError(f"the service gives bytes [{first}, {first + len(content)}) of {self._name} for byte {at}")
        self._kept = [*self._kept[-1:], (first, content)]
        return first, memoryview(content)
