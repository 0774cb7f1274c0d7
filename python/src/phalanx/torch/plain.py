# SPDX-License-Identifier: Apache-2.0
"""For a script that keeps its own loop (`phalanx run --plain`): it says where it is, and hears when it should leave.

    run = phalanx.torch.init()
    for i in range(first, steps):
        …
        if run.step(i):
            save(i)
            run.exit()

The daemon shows the step in `status`, calls a trainer hung that computes for longer than `--hang-timeout` in one step, and
names the one that never entered a collective where the others wait.
"""

from __future__ import annotations

import atexit
import contextlib
import sys
import threading
import weakref
from typing import Any, NoReturn

from .. import _native, _page
from ..client import PHASES
from ..errors import EXIT_PREEMPTED
from ..hello import socket_path
from ..signals import Handlers


class Plain:
    """This process in a job without a step protocol. Without a daemon everything is accepted and nothing happens."""

    def __init__(self, watch: bool = True, signals: bool = True) -> None:
        """Not for callers: see `init`."""
        self._client: Any = None
        self._step = 0
        self._asked = threading.Event()
        if socket_path() is not None:
            from .flight import flight

            self._client = flight().ring._client
        self._post = _native.library().posts.phx_at if self._client is not None else None
        self._handlers = Handlers(self._asked.set) if signals else None
        if watch:
            self._watch_collectives()

    @property
    def preempted(self) -> bool:
        """Whether the process was asked to end (TERM, or the first INT)."""
        return self._asked.is_set()

    def step(self, number: int) -> bool:
        """Says that a step begins. Returns True when the process was asked to end: save and leave with `exit`."""
        self._step = number
        self._say(_page.PHASE_COMPUTE)
        return self._asked.is_set()

    def phase(self, name: str) -> None:
        """Says what the process does beside its steps: load, save, eval or compile, which have no deadline, or compute again."""
        if name not in PHASES:
            raise ValueError(f"phase {name!r}; say one of {', '.join(PHASES)}")
        self._say(PHASES[name])

    def exit(self) -> NoReturn:
        """Leaves with the exit status for "saved, start me again" (75)."""
        sys.exit(EXIT_PREEMPTED)

    def _say(self, phase: int) -> None:
        if self._post is not None and self._client._handle is not None:
            self._post(self._client._handle, phase, self._step)

    def _watch_collectives(self) -> None:
        """Lets every collective of the default group say that this rank waits for others in it."""
        import torch.distributed as dist

        if self._post is None or not dist.is_available() or not dist.is_initialized():
            return
        group = dist.group.WORLD
        if hasattr(group, "register_pre_hook") and hasattr(group, "register_post_hook"):
            group.register_pre_hook(_HOOK, lambda _: self._say(_page.PHASE_REDUCE))
            group.register_post_hook(_HOOK, lambda _: self._say(_page.PHASE_COMPUTE))
            atexit.register(_unhook, weakref.ref(group))


_HOOK = 0x9F41  # the id of ours on a group


def _unhook(group: Any) -> None:
    """Takes the hooks off before the interpreter is gone: a thread of the group may still end a collective."""
    living = group()
    if living is not None:
        for kind in ("pre", "post"):
            with contextlib.suppress(Exception):  # the group may be shut down
                getattr(living, f"unregister_{kind}_hook")(_HOOK)


_run: Plain | None = None


def init(*, watch: bool = True, signals: bool = True) -> Plain:
    """Takes up with the daemon that started this process. Call it once, after `init_process_group` if there is one.

    watch: where PyTorch has hooks for it (2.15), collectives of the default group say that this rank waits in them.
    signals: TERM and the first INT make `step` return True instead of ending the process.
    """
    global _run
    if _run is None:
        _run = Plain(watch, signals)
    return _run
