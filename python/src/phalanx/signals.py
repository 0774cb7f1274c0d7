# SPDX-License-Identifier: Apache-2.0
"""TERM and INT, which ask a trainer to leave in order while it has a client."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable
from typing import Any

log = logging.getLogger("phalanx")


class Handlers:
    """Handlers that call `leave`, and then what was there before if it is a function of the user's.

    A second INT does what INT did before. Only the main thread can install and restore them.
    """

    def __init__(self, leave: Callable[[], None]) -> None:
        self._leave = leave
        self._installed: list[tuple[int, Any, Any]] = []
        if threading.current_thread() is not threading.main_thread():
            log.warning(
                "TERM and INT end this process: only the main thread can have handlers for them, "
                "and it did not say hello"
            )
            return
        for number in (signal.SIGTERM, signal.SIGINT):
            self._install(number)

    def _install(self, number: int) -> None:
        before = signal.getsignal(number)
        if before is None:
            return  # it was not installed from Python, and could not be put back

        def handler(n: int, frame: Any) -> None:
            self._leave()
            if n == signal.SIGINT:
                signal.signal(n, before)  # the next one ends the process as usual
            if callable(before) and before is not signal.default_int_handler:
                before(n, frame)

        signal.signal(number, handler)
        self._installed.append((number, handler, before))

    def restore(self) -> None:
        """Puts back what was there before, unless somebody has put another handler there since."""
        installed, self._installed = self._installed, []
        if threading.current_thread() is not threading.main_thread():
            return
        for number, mine, before in installed:
            if signal.getsignal(number) is mine:
                signal.signal(number, before)
