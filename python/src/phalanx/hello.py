# SPDX-License-Identifier: Apache-2.0
"""The one socket call of a trainer: HTTP with JSON over the daemon's unix socket."""

from __future__ import annotations

import http.client
import json
import os
import socket
import time
from typing import Any

from . import warm
from .errors import Error, Refused

PROTOCOL = 1
_RETRY = 0.1  # seconds between two hellos while the daemon is busy
_MAX_BODY = 1 << 20


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str, timeout: float) -> None:
        super().__init__("phalanx", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def ask(path: str, method: str, target: str, body: Any = None, timeout: float = 10.0) -> Any:
    """Sends one request to the socket at `path` and returns the decoded answer. A refusal raises
    Refused.
    """
    connection = _UnixConnection(path, timeout)
    try:
        data = None if body is None else json.dumps(body).encode()
        connection.request(
            method, target, data, {"Content-Type": "application/json", "Connection": "close"}
        )
        response = connection.getresponse()
        answer = response.read(_MAX_BODY)
    except (OSError, http.client.HTTPException) as e:
        raise Error(
            f"{method} {target}: the daemon at {path} does not answer: {e}; look at phalanx status"
        ) from e
    finally:
        connection.close()
    try:
        decoded = json.loads(answer)
    except ValueError:
        decoded = None
    if response.status != 200:
        if not isinstance(decoded, dict) or not decoded.get("error"):
            decoded = {"error": f"the daemon answered {response.status} {response.reason}"}
        raise Refused(decoded.get("code", ""), decoded["error"], decoded.get("hint", ""))
    if not isinstance(decoded, dict):
        raise Error(f"{method} {target}: the daemon's answer cannot be read")
    return decoded


def ask_until(
    path: str, method: str, target: str, body: Any = None, timeout: float = 60.0
) -> dict[str, Any]:
    """Asks until the answer is another one than "ask again", at most for `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while True:
        try:
            left = max(0.1, deadline - time.monotonic())
            answer: dict[str, Any] = ask(path, method, target, body, left)
            return answer
        except Refused as e:
            if e.code != "busy" or time.monotonic() >= deadline:
                raise
        time.sleep(_RETRY)


def say_hello(path: str, hello: dict[str, Any], timeout: float) -> dict[str, Any]:
    """Says hello until the daemon is ready for it, at most for `timeout` seconds, and returns the
    welcome.
    """
    welcome = ask_until(path, "POST", "/v1/hello", hello, timeout)
    if welcome.get("protocol") != PROTOCOL:
        raise Error(
            f"the daemon chose protocol {welcome.get('protocol')}, this is {PROTOCOL}; "
            "run daemon and package of one release"
        )
    return welcome


def ask_place(group_size: int, timeout: float = 60.0) -> int:
    """At which coordinate of groups of group_size ranks this process is to sit, before its hello; 0
    without a daemon.

    The answer stays the same for this process. It is what `Client.hello` takes as pinned when the
    state is that of one shard.
    """
    path = socket_path()
    if path is None:
        return 0
    answer = ask_until(path, "GET", f"/v1/place?group_size={group_size}", timeout=timeout)
    coordinate = answer.get("coordinate")
    if not isinstance(coordinate, int) or not 0 <= coordinate < group_size:
        raise Error(
            f"the daemon's place in groups of {group_size} is {coordinate!r}; "
            "run daemon and package of one release"
        )
    return coordinate


def spec_difference(job: dict[str, Any], own: dict[str, Any]) -> str:
    """Names the fields in which two specs differ, "" when they agree. A field that is missing is
    empty.
    """
    out = []
    for name in sorted(job.keys() | own.keys()):
        a, b = job.get(name) or None, own.get(name) or None
        if a != b:
            out.append(f"{name} is {b}, the job has {a}")
    return "; ".join(out)


def process_start(pid: int) -> int:
    """Field 22 of /proc/PID/stat: with the pid it names a process for ever."""
    with open(f"/proc/{pid}/stat", "rb") as f:
        return int(f.read().rpartition(b")")[2].split()[19])


def trainer_words() -> dict[str, Any]:
    """What every hello says of the process."""
    pid = os.getpid()
    start = process_start(pid)
    return {"pid": pid, "start": start, "protocol_min": PROTOCOL, "protocol_max": PROTOCOL}


def socket_path() -> str | None:
    """The daemon's socket, None without one or with PHALANX_DISABLE=1. A process that was started
    ahead waits here for its place.
    """
    if os.environ.get("PHALANX_DISABLE", "") not in ("", "0"):
        return None
    warm.wait()
    return os.environ.get("PHALANX_SOCKET") or None
