# SPDX-License-Identifier: Apache-2.0
"""The daemon's key-value store as a Store of torch: of one generation, held by no rank."""

from __future__ import annotations

import os
import socket
import struct
import threading
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from ..errors import Fenced, Illegal, Refused
from ..hello import socket_path

_StoreError: Any = getattr(dist, "DistStoreError", RuntimeError)
_NetworkError: Any = getattr(dist, "DistNetworkError", RuntimeError)

_MAGIC = 0x3C85F7CE
(
    _VALIDATE,
    _SET,
    _COMPARE_SET,
    _GET,
    _ADD,
    _CHECK,
    _WAIT,
    _NUM_KEYS,
    _DELETE,
    _APPEND,
    _MULTI_GET,
    _MULTI_SET,
    _CANCEL_WAIT,
    _PING,
    _QUEUE_PUSH,
    _QUEUE_POP,
    _QUEUE_LEN,
    _LIST_KEYS,
    _BARRIER,
) = range(19)
_CANCELED = 1  # the answer to a cancellation
_GRACE = 10.0  # seconds for an answer that the daemon gives at once
_RETRY = 0.05
_MAX_BYTES = 8 << 20


# PyTorch holds the half of a store that is C++'s, which cannot do without the one that is Python's.
_open: set[DaemonStore] = set()


class DaemonStore(dist.Store):
    """A client of the store of a generation. Calls may come from any thread; one at a time is
    carried out. What is waited for after the generation has ended raises DistNetworkError.

    Keys are those of a TCPStore that is connected to the same daemon. A store lives until close or
    until its connection ends.
    """

    def __init__(
        self,
        path: str | None = None,
        *,
        host: str | None = None,
        port: int | None = None,
        generation: tuple[int, int] | None = None,
        timeout: timedelta = timedelta(seconds=300),
    ) -> None:
        """Over the daemon's unix socket at `path` (PHALANX_SOCKET by default) for a generation,
        that of PHALANX_GENERATION by default; or at host and port, of whatever
        generation is served there.

        timeout: of connecting, and of waits that name none. Raises Fenced when the generation is
        over, and Illegal when it is not said what to connect to.
        """
        super().__init__()
        self.set_timeout(timeout)
        self._how = (path, host, port, generation)
        self._lock = threading.Lock()
        self._pid = os.getpid()
        deadline = time.monotonic() + timeout.total_seconds()
        if port is not None:
            self._socket = socket.create_connection(
                (host or "127.0.0.1", port), max(0.1, timeout.total_seconds())
            )
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        else:
            self._socket = _upgrade(path, generation, deadline)
        self._broken = ""
        nonce = os.getpid() & 0xFFFFFFFF
        hello = struct.pack("<BIBI", _VALIDATE, _MAGIC, _PING, nonce)
        _open.add(self)
        with self._lock:
            self._send(hello)
            left = max(0.1, deadline - time.monotonic())  # rank 0's daemon may be on its way
            if struct.unpack("<I", self._receive(4, left))[0] != nonce:
                self._break("what is connected to is no store")

    def clone(self) -> DaemonStore:
        """Another connection to the same store."""
        path, host, port, generation = self._how
        return DaemonStore(path, host=host, port=port, generation=generation, timeout=self.timeout)

    def close(self) -> None:
        """Ends the connection. What was stored stays."""
        with self._lock:
            self._broken = self._broken or "the store was closed"
            self._socket.close()
        _open.discard(self)

    # What torch calls.

    def set(self, key: str, value: str | bytes) -> None:
        with self._lock:
            self._send(bytes([_SET]) + _key(key) + _bytes(value))

    def get(self, key: str) -> bytes:
        """Waits for the key."""
        with self._lock:
            self._wait([key], self.timeout)
            self._send(bytes([_GET]) + _key(key))
            return self._value()

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        with self._lock:
            self._wait(keys, self.timeout if timeout is None else timeout)

    def add(self, key: str, amount: int) -> int:
        with self._lock:
            self._send(bytes([_ADD]) + _key(key) + struct.pack("<q", amount))
            return self._number()

    def check(self, keys: Sequence[str]) -> bool:
        with self._lock:
            self._send(bytes([_CHECK]) + _keys(keys))
            return self._receive(1, _GRACE) == b"\0"

    def compare_set(self, key: str, expected: str | bytes, desired: str | bytes) -> bytes:
        """Sets the desired value if the present one is the expected one, "" for none. Returns what
        is there then; the expected one if nothing is.
        """
        with self._lock:
            self._send(bytes([_COMPARE_SET]) + _key(key) + _bytes(expected) + _bytes(desired))
            return self._value()

    def delete_key(self, key: str) -> bool:
        with self._lock:
            self._send(bytes([_DELETE]) + _key(key))
            return self._number() > 0

    def num_keys(self) -> int:
        with self._lock:
            self._send(bytes([_NUM_KEYS]))
            return self._number()

    def append(self, key: str, value: str | bytes) -> None:
        with self._lock:
            self._send(bytes([_APPEND]) + _key(key) + _bytes(value))

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        """Waits for the keys."""
        with self._lock:
            self._wait(keys, self.timeout)
            self._send(bytes([_MULTI_GET]) + _keys(keys))
            return [self._value() for _ in keys]

    def multi_set(self, keys: Sequence[str], values: Sequence[str | bytes]) -> None:
        if len(keys) != len(values):
            raise ValueError(f"multi_set: {len(keys)} keys and {len(values)} values")
        with self._lock:
            body = b"".join(_key(k) + _bytes(v) for k, v in zip(keys, values, strict=True))
            self._send(bytes([_MULTI_SET]) + struct.pack("<Q", len(keys)) + body)

    def has_extended_api(self) -> bool:
        return True

    def queue_push(self, key: str, value: str | bytes) -> None:
        with self._lock:
            self._send(bytes([_QUEUE_PUSH]) + _key(key) + _bytes(value))

    def queue_pop(self, key: str, block: bool = True) -> bytes:
        """The oldest value. Waits for one; without block, DistStoreError when there is none."""
        deadline = time.monotonic() + self.timeout.total_seconds()
        while True:
            with self._lock:
                if block:
                    left = timedelta(seconds=max(0.001, deadline - time.monotonic()))
                    self._wait([key], left)
                self._send(bytes([_QUEUE_POP]) + _key(key))
                if self._number() > 0:
                    return self._value()
            if not block:
                raise _StoreError(f"queue {key} is empty")

    def queue_len(self, key: str) -> int:
        with self._lock:
            self._send(bytes([_QUEUE_LEN]) + _key(key))
            return self._number()

    def list_keys(self) -> list[str]:
        with self._lock:
            self._send(bytes([_LIST_KEYS]))
            keys = [self._value().decode(errors="replace") for _ in range(self._number())]
            return [k.removeprefix("/") for k in keys]

    def barrier(self, key: str, world_size: int, timeout: timedelta | None = None) -> None:
        """Waits until that many clients have called it with the key."""
        with self._lock:
            request = bytes([_BARRIER]) + _key(key) + struct.pack("<q", world_size)
            self._await(request, self.timeout if timeout is None else timeout, f"barrier {key}")

    # The connection. The caller holds the lock.

    def _wait(self, keys: Sequence[str], timeout: timedelta) -> None:
        names = ", ".join(list(keys)[:8])
        self._await(bytes([_WAIT]) + _keys(keys), timeout, f"wait for {names}")

    def _await(self, request: bytes, timeout: timedelta, what: str) -> None:
        self._send(request)
        try:
            self._receive(1, max(0.001, timeout.total_seconds()), patient=True)
        except TimeoutError:
            self._send(bytes([_CANCEL_WAIT]))
            if self._receive(1, _GRACE)[0] != _CANCELED:  # it was answered at the same moment
                self._receive(1, _GRACE)
                return
            ms = int(timeout.total_seconds() * 1000)
            raise _StoreError(f"{what}: timeout after {ms} ms") from None

    def _send(self, data: bytes) -> None:
        if self._pid != os.getpid():
            raise Illegal("a forked process has no connection of its own; call clone() in it")
        if self._broken:
            raise _NetworkError(self._broken)
        try:
            self._socket.settimeout(60.0)
            self._socket.sendall(data)
        except OSError as e:
            self._break(f"the store is gone: {e}; its generation has ended, or its daemon")
        except BaseException:
            self._forget("a request was interrupted in its middle")
            raise

    def _receive(self, n: int, seconds: float, patient: bool = False) -> bytes:
        """n bytes. A patient caller goes on with the connection after a TimeoutError, which it can
        while no byte has come.
        """
        out = bytearray()
        deadline = time.monotonic() + seconds
        while len(out) < n:
            try:
                self._socket.settimeout(max(0.001, deadline - time.monotonic()))
                more = self._socket.recv(n - len(out))
            except TimeoutError:
                if patient and not out:
                    raise
                self._break("the daemon has not answered in time; look at phalanx status")
            except OSError as e:
                self._break(f"the store is gone: {e}; its generation has ended, or its daemon")
            except BaseException:  # of a signal handler: the answer would be taken for that of the next request
                self._forget("an answer was not waited for to its end")
                raise
            if not more:
                self._break("the store is gone: its generation has ended, or its daemon")
            out += more
        return bytes(out)

    def _number(self) -> int:
        n: int = struct.unpack("<q", self._receive(8, _GRACE))[0]
        return n

    def _value(self) -> bytes:
        n = self._number()
        if not 0 <= n <= _MAX_BYTES:
            self._break(f"the store's answer has {n} bytes")
        return self._receive(n, _GRACE) if n else b""

    def _forget(self, why: str) -> None:
        self._broken = why
        self._socket.close()
        _open.discard(self)

    def _break(self, why: str) -> None:
        self._forget(why)
        raise _NetworkError(why)


def _key(key: str) -> bytes:
    return _bytes("/" + key)


def _keys(keys: Sequence[str]) -> bytes:
    return struct.pack("<Q", len(keys)) + b"".join(_key(k) for k in keys)


def _bytes(value: str | bytes) -> bytes:
    data = value.encode() if isinstance(value, str) else bytes(value)
    if len(data) > _MAX_BYTES:
        raise ValueError(f"{len(data)} bytes: a key or value of the store has at most {_MAX_BYTES}")
    return struct.pack("<Q", len(data)) + data


def _upgrade(
    path: str | None, generation: tuple[int, int] | None, deadline: float
) -> socket.socket:
    """A connection over the unix socket. A generation that the daemon has not read yet is waited
    for.
    """
    path = path or socket_path()
    if path is None:
        raise Illegal("no daemon: PHALANX_SOCKET is not set; name a path, or host and port")
    if generation is None:
        name = os.environ.get("PHALANX_GENERATION", "")
        if not name:
            raise Illegal("say of which generation the store is: PHALANX_GENERATION is not set")
    else:
        name = f"{generation[0]}.{generation[1]}" if generation[0] else str(generation[1])
    request = (
        f"GET /v1/store?generation={name} HTTP/1.1\r\nHost: phalanx\r\n"
        "Connection: Upgrade\r\nUpgrade: phalanx-store/1\r\n\r\n"
    ).encode()
    while True:
        s = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            s.settimeout(max(0.1, deadline - time.monotonic()))
            s.connect(path)
            s.sendall(request)
            status, body = _head(s)
        except BaseException:
            s.close()
            raise
        if status == 101:
            return s
        s.close()
        if status == 410:
            raise Fenced(f"generation {name} is over: its store is gone")
        if status != 409:
            raise Refused("bad_request", f"the daemon refuses its store: {status} {body}")
        if time.monotonic() >= deadline:
            raise _StoreError(f"the daemon has not read of generation {name} in time")
        time.sleep(_RETRY)


def _head(s: socket.socket) -> tuple[int, str]:
    """The status of an answer and, unless the protocol was switched, its text. Nothing behind the
    head of a switch is read.
    """
    head = bytearray()
    while not head.endswith(b"\r\n\r\n"):
        b = s.recv(1)
        if not b or len(head) > 1 << 16:
            raise _NetworkError("the daemon's answer cannot be read; look at phalanx status")
        head += b
    status = int(head.split(None, 2)[1])
    return status, "" if status == 101 else s.recv(1 << 16).decode(errors="replace").strip()


__all__ = ["DaemonStore"]
