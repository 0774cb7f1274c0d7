# SPDX-License-Identifier: Apache-2.0
"""The way to published checkpoints: a daemon's socket, or that of a helper process where no daemon is. Without PyTorch."""

from __future__ import annotations

import atexit
import contextlib
import http.client
import json
import os
import re
import select
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote

from ..errors import Error

_PATH = "/v1/checkpoint/"
_START_TIMEOUT = 60.0  # seconds for the helper to reach the store
_REQUEST_TIMEOUT = 1800.0  # seconds without a byte; the service itself bounds what it waits for
_RECEIVE = 8 << 20  # bytes of a box that are read at once into memory that is not the tensor's


class CheckpointError(Error):
    """A checkpoint cannot be written or read. `kind` is one of fenced, incomplete, damaged, not_found, format, store, space,
    usage and other."""

    kind = "other"


class NotPublished(CheckpointError, FileNotFoundError):
    """There is no such published checkpoint, or no such thing in it."""

    kind = "not_found"


class Superseded(CheckpointError, FileExistsError):
    """The step is published already, or a newer one is: what this save would write could never be published."""

    kind = "fenced"


class Damaged(CheckpointError):
    """Stored bytes are not those that were written. The text names the object, the tensor and the range."""

    kind = "damaged"


class Incomplete(CheckpointError):
    """Ranks have not written what the index names. Nothing was published."""

    kind = "incomplete"


class StoreFailed(CheckpointError, OSError):
    """The store does not answer, lacks room or refuses. The same save may be tried again."""

    kind = "store"


_KINDS = {c.kind: c for c in (NotPublished, Superseded, Damaged, Incomplete, StoreFailed)} | {"space": StoreFailed}


def _raise(kind: str, text: str) -> None:
    raise _KINDS.get(kind, CheckpointError)(text)


# ---- names


@dataclass(frozen=True)
class Target:
    """What a URL names: phalanx://[JOB/]WHICH[?store=URL&branch=new], WHICH being latest, step-N or a checkpoint's folder."""

    job: str = ""  # "": that of the service
    which: str = "latest"
    store: str = ""  # "": that of the job
    new_branch: bool = False
    file: str = ""  # in the checkpoint; "": the checkpoint itself

    @property
    def key(self) -> str:
        """Names the checkpoint among those of this process."""
        return f"{self.store}|{self.job}|{self.which}"

    @property
    def step(self) -> int:
        """The step that a save is of."""
        m = re.fullmatch(r"step-(0|[1-9]\d*)", self.which)
        if not m:
            raise ValueError(f"phalanx://{self.job or 'JOB'}/{self.which}: a save needs a step, such as phalanx://step-100")
        return int(m[1])

    def folder(self) -> Target:
        """The checkpoint without the file."""
        return Target(self.job, self.which, self.store, self.new_branch)


_SCHEME = "phalanx://"
_FILE = re.compile(r"/((?:__\d+)?\.metadata(?:\.tmp)?|__\d+_\d+\.distcp)$")
_WHICH = re.compile(r"latest|step-\d+(-g[\d.]+-a[\d.]+)?")
_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*")


def is_url(checkpoint_id: object) -> bool:
    """Whether a checkpoint_id is one of ours."""
    return isinstance(checkpoint_id, (str, os.PathLike)) and os.fspath(checkpoint_id).startswith(_SCHEME)


def parse(url: str | os.PathLike[str]) -> Target:
    """Reads a URL, with or without its scheme. ValueError says what is wrong with it."""
    text = os.fspath(url)
    rest = text.removeprefix(_SCHEME)
    file = ""
    if m := _FILE.search(rest):
        rest, file = rest[: m.start()], m[1]
    path, _, query = rest.partition("?")
    if not file and (m := _FILE.search(path)):  # as ls gives it; PyTorch puts it behind all else
        path, file = path[: m.start()], m[1]
    given = dict(parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query)))
    if unknown := sorted(set(given) - {"store", "job", "branch"}):
        raise ValueError(f"{text}: unknown parameter {unknown[0]!r}: there are store, job and branch")
    if given.get("branch", "new") != "new":
        raise ValueError(f"{text}: branch={given['branch']}: write branch=new, or leave it out to follow the newest one")
    parts = [unquote(p) for p in path.split("/") if p]
    if parts and _WHICH.fullmatch(parts[-1]):
        which = parts.pop()
    else:
        which = "latest"
    job = given.get("job", "")
    if len(parts) == 1 and not job:
        job = parts.pop()
    if parts:
        raise ValueError(f"{text}: want phalanx://[JOB/]step-N, phalanx://[JOB/]latest or phalanx://JOB")
    if job and not _NAME.fullmatch(job):
        raise ValueError(f"{text}: job {job!r}: letters, digits, dots, dashes and underscores, not beginning with a dot")
    return Target(job, which, given.get("store", ""), "branch" in given, file)


# ---- requests


def parse_checkpoint(url: str | os.PathLike[str]) -> Target:
    """As parse, for what names a whole checkpoint. Raises ValueError for a file of one."""
    target = parse(url)
    if target.file:
        raise ValueError(f"{os.fspath(url)}: names a file; name the checkpoint")
    return target


class _Connection(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("phalanx", timeout=_REQUEST_TIMEOUT)
        self._path = path

    def connect(self) -> None:
        s = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        s.settimeout(self.timeout)
        try:
            s.connect(self._path)
        except OSError:
            s.close()
            raise
        self.sock = s


class Service:
    """Serves the checkpoints of one store. It may be used by several threads: each has a connection of its own."""

    def __init__(self, path: str, helper: _Helper | None = None) -> None:
        self.path = path
        self.helper = helper
        self._local = threading.local()

    def _post(self, verb: str, body: dict[str, Any]) -> http.client.HTTPResponse:
        payload = json.dumps(body).encode()
        for fresh in (False, True):
            c: _Connection | None = getattr(self._local, "connection", None)
            if c is None or fresh or getattr(self._local, "pid", 0) != os.getpid():
                c = _Connection(self.path)
                self._local.connection, self._local.pid, reused = c, os.getpid(), False
            else:
                reused = True
            try:
                c.request("POST", _PATH + verb, payload, {"Content-Type": "application/json"})
                return c.getresponse()
            except (OSError, http.client.HTTPException) as e:
                c.close()
                self._local.connection = None
                # An idle connection may have been closed meanwhile. All requests may be repeated.
                if not reused:
                    raise StoreFailed(
                        f"nobody serves checkpoints at {self.path}: {e}; the daemon or helper has ended: see phalanx status"
                    ) from e
        raise AssertionError("unreachable")

    def call(self, verb: str, **body: Any) -> dict[str, Any]:
        """One request with a small answer."""
        r = self._post(verb, body)
        b = r.read()
        if r.status != 200:
            self._fail(r.status, b)
        out = json.loads(b)
        assert isinstance(out, dict)
        return out

    @staticmethod
    def _fail(status: int, body: bytes) -> None:
        try:
            f = json.loads(body)
            kind, text = f["kind"], f["error"]
        except (ValueError, KeyError, TypeError):
            kind, text = "other", f"the service answers {status}: {body[:200]!r}; is it phalanx of this release?"
        _raise(kind, text)

    def file(self, job: str, attempt: str, name: str, at: int) -> tuple[int, bytes]:
        """The verified record at a byte of a file, and where it begins."""
        r = self._post("file", {"job": job, "attempt": attempt, "name": name, "at": at})
        b = r.read()
        if r.status != 200:
            self._fail(r.status, b)
        return int(r.headers["Phalanx-From"]), b

    def read(
        self, job: str, attempt: str, boxes: Sequence[tuple[str, Sequence[int], Sequence[int]]], values: Sequence[str]
    ) -> Frames:
        """Boxes (name, offset, size) of a checkpoint, then values, verified, in this order."""
        r = self._post(
            "read",
            {
                "job": job,
                "attempt": attempt,
                "boxes": [{"name": n, "offset": list(o), "shape": list(s)} for n, o, s in boxes],
                "values": list(values),
            },
        )
        if r.status != 200:
            self._fail(r.status, r.read())
        return Frames(r)

    def drop(self) -> None:
        """Ends this thread's connection, for one that was left in the middle of an answer."""
        c = getattr(self._local, "connection", None)
        if c is not None:
            c.close()
            self._local.connection = None


class Frames:
    """The answer to Service.read."""

    def __init__(self, response: http.client.HTTPResponse) -> None:
        self._response = response

    def _exactly(self, into: memoryview) -> None:
        while into:
            n = self._response.readinto(into)
            if not n:
                raise StoreFailed("the answer ended in the middle: the daemon or helper has ended; load again")
            into = into[n:]

    def _head(self) -> tuple[bytes, int]:
        head = bytearray(9)
        self._exactly(memoryview(head))
        kind, n = bytes(head[:1]), int.from_bytes(head[1:], "little")
        if kind == b"E":
            b = bytearray(n)
            self._exactly(memoryview(b))
            f = json.loads(b)
            _raise(f["kind"], f["error"])
        return kind, n

    def fill(self, into: memoryview) -> None:
        """Fills memory with the next box."""
        while into:
            kind, n = self._head()
            if kind != b"D" or n > len(into):
                raise CheckpointError(f"the service sends {n} bytes of kind {kind!r} for {len(into)}")
            self._exactly(into[:n])
            into = into[n:]

    def value(self) -> bytes:
        """The next value."""
        kind, n = self._head()
        b = bytearray(n)
        self._exactly(memoryview(b))
        return bytes(b)

    def end(self) -> None:
        """Takes the end of the answer."""
        kind, n = self._head()
        if kind != b"." or self._response.read():
            raise CheckpointError(f"the service sends {n} bytes of kind {kind!r} after the end")


# ---- the helper


def binary() -> str:
    """The phalanx command: PHALANX_BINARY, that of the package, of the source tree, or of PATH."""
    if path := os.environ.get("PHALANX_BINARY"):
        return path
    here = Path(__file__).resolve()
    for path in (here.parents[1] / "_lib" / "phalanx", here.parents[4] / "bin" / "phalanx"):
        if os.access(path, os.X_OK):
            return str(path)
    if path := shutil.which("phalanx"):
        return path
    raise CheckpointError("no phalanx command: put it into PATH, or its path into PHALANX_BINARY")


class _Helper:
    """`phalanx ckpt serve` for a store. It ends when its input does: with this process, however that ends."""

    def __init__(self, store: str) -> None:
        self.folder = tempfile.mkdtemp(prefix="phx-", dir="/tmp")  # a short name: a socket's path has at most 107 bytes
        self.socket = os.path.join(self.folder, "s")
        self.pid = os.getpid()
        environment = {k: v for k, v in os.environ.items() if k not in ("PHALANX_SOCKET",)}
        try:
            self.process = subprocess.Popen(
                [binary(), "ckpt", "serve", "--stdin", "--socket", self.socket, "--store", store],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=environment,
                start_new_session=True,  # a Ctrl-C for the program must not end it in the middle of a publish
            )
            self._await()
        except BaseException:
            shutil.rmtree(self.folder, ignore_errors=True)
            raise

    def _await(self) -> None:
        assert self.process.stdout is not None and self.process.stderr is not None
        deadline = time.monotonic() + _START_TIMEOUT
        while time.monotonic() < deadline:
            ready, _, _ = select.select([self.process.stdout], [], [], 0.2)
            if ready:
                if self.process.stdout.readline():
                    threading.Thread(target=self._pass_on, name="phalanx-helper", daemon=True).start()
                    return
                _, said = self.process.communicate(timeout=10)
                raise CheckpointError(said.decode(errors="replace").strip().removeprefix("phalanx: "))
        self.process.kill()
        self.process.communicate()
        raise StoreFailed(f"the store did not answer within {_START_TIMEOUT:.0f} s: phalanx store probe URL says why")

    def _pass_on(self) -> None:
        """Prints what the helper complains about; ends with it."""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            with contextlib.suppress(OSError, ValueError):
                os.write(2, line)

    def alive(self) -> bool:
        return self.pid == os.getpid() and self.process.poll() is None

    def close(self) -> None:
        if self.pid != os.getpid():
            return
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):
            self.process.stdin.close()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


_lock = threading.Lock()  # guards _services
_services: dict[str, Service] = {}


def _forget() -> None:
    """A forked child uses none of its parent's."""
    global _lock
    _lock = threading.Lock()
    _services.clear()


os.register_at_fork(after_in_child=_forget)


@atexit.register
def _close() -> None:
    for s in list(_services.values()):
        if s.helper is not None:
            s.helper.close()


def service(store: str = "") -> Service:
    """The service for a store: the daemon's, or for another store than the job's, and without a daemon, a helper process."""
    at = os.environ.get("PHALANX_SOCKET", "")
    where = store or os.environ.get("PHALANX_STORE", "")
    if not store and at:
        where = ""
    elif not where:
        raise CheckpointError(
            "no store for checkpoints: run under phalanx run, set PHALANX_STORE, or write phalanx://JOB/step-N?store=URL"
        )
    with _lock:
        s = _services.get(where)
        if s is not None and (s.helper is None or s.helper.alive()):
            return s
        if not where:
            s = Service(at)
        else:
            helper = _Helper(where)
            s = Service(helper.socket, helper)
        _services[where] = s
        return s


def generation() -> int:
    """The generation that this program was started in, 0 when it is of no job without steps."""
    text = os.environ.get("PHALANX_GENERATION", "")
    return int(text.rpartition(".")[2]) if re.fullmatch(r"(\d+\.)?\d+", text) else 0


def attempts(s: Service, job: str) -> Iterator[tuple[int, str]]:
    """Step and folder of what is published, oldest first."""
    for c in s.call("list", job=job)["checkpoints"]:
        yield c["step"], c["attempt"]
