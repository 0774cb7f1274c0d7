# SPDX-License-Identifier: Apache-2.0
"""The place at which a trainer that was started ahead (`phalanx run --warm`) waits.

Such a process is started like any trainer, with PHALANX_WARM and without the variables of a place:
no RANK, no LOCAL_RANK, no MASTER_ADDR. It comes as far as `wait`, with all its imports done, and
stays there until a member's trainer dies. Then it has the variables of that place, its output goes
to the place's file, and it goes on. Everything that reaches for the daemon calls `wait` first, and
in a job without the step protocol `import phalanx.torch` does, so a script needs no call of its own
unless it reads the variables before that.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import socket
import sys

VARIABLE = "PHALANX_WARM"
AT_VARIABLE = "PHALANX_WARM_AT"
_SLICE = 1.0  # seconds that a wait stays out of Python at most, so that signal handlers run
_MAX = 1 << 20


def wait() -> None:
    """Waits for a place if this process was started ahead, and returns at once otherwise.

    When no place will need it any more, because the job or `phalanx run` has ended, the process
    ends with 0.
    """
    path = os.environ.pop(VARIABLE, None)  # it waits once; what it starts later does not
    if not path:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as run:
        try:
            run.connect(path)
            _send(run, {"op": "ready"})
        except OSError:
            _leave()
        place = _receive(run)
        if place.get("op") != "place":
            raise RuntimeError(
                f"{place.get('op')!r} is no place; run phalanx and the package of one release"
            )
        _turn_output(place.get("log"))
        variables = place.get("env")
        if isinstance(variables, dict):
            os.environ.update(variables)
        _send(run, {"op": "taken"})


def wait_at_import() -> None:
    """Waits for a place in a job without the step protocol, whose script reads RANK and the like as
    soon as it is done with its imports. `import phalanx.torch` does this at its end.
    """
    if os.environ.pop(AT_VARIABLE, "") != "import" or not os.environ.get(VARIABLE):
        return
    with contextlib.suppress(ImportError):
        importlib.import_module("torch._dynamo")  # the first optimizer would, for seconds
    wait()


def _send(run: socket.socket, message: dict[str, str]) -> None:
    run.sendall(json.dumps(message).encode() + b"\n")


def _receive(run: socket.socket) -> dict[str, object]:
    run.settimeout(_SLICE)
    line = b""
    while not line.endswith(b"\n"):
        try:
            part = run.recv(_MAX)
        except TimeoutError:
            continue
        except OSError:
            part = b""
        if not part or len(line) > _MAX:
            _leave()
        line += part
    run.settimeout(_SLICE)
    message = json.loads(line)
    return message if isinstance(message, dict) else {}


def _leave() -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # nothing was begun, so there is nothing to end in order


def _turn_output(path: object) -> None:
    if not isinstance(path, str) or not path:
        return
    sys.stdout.flush()
    sys.stderr.flush()
    out = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        os.dup2(out, 1)
        os.dup2(out, 2)
    finally:
        os.close(out)
