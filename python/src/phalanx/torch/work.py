# SPDX-License-Identifier: Apache-2.0
"""What a collective returns: a Work of torch over the pieces that carry it out."""

from __future__ import annotations

import collections
import threading
import time
from datetime import timedelta
from typing import Any

import torch
from torch._C._distributed_c10d import BarrierOptions, ProcessGroup, Work

from ..errors import CollectiveFailed, Revoked
from .flight import Flight, Piece

_DistError: Any = getattr(torch.distributed, "DistBackendError", RuntimeError)


class CollectiveRevoked(Revoked, _DistError):  # type: ignore[misc]
    """A collective whose generation or group has ended: a rank was lost, or abort was called."""


class CollectiveRefused(CollectiveFailed, _DistError):  # type: ignore[misc]
    """A collective that does not fit to what the other ranks do."""


class CollectiveTimeout(_DistError):  # type: ignore[misc]
    """A collective that has not ended in time. Its group is aborted."""


class RingWork(Work):
    """Ends when all its pieces have ended. wait may be called from any thread, without the GIL held
    meanwhile. PyTorch from 2.15 on passes wait and get_future on to it, and nothing else.
    """

    def __init__(self, flight: Flight, group: Any, what: str, outputs: list[torch.Tensor]) -> None:
        super().__init__()
        self._flight, self._group, self._what, self._outputs = flight, group, what, outputs
        self._pieces: list[Piece] = []
        self._future: torch.futures.Future[list[torch.Tensor]] | None = None
        self._ended: torch.futures.Future[None] | None = None
        self._open = 0
        self._lock = threading.Lock()
        self.timeout_seconds = group._timeout_seconds
        self.deadline = time.monotonic() + self.timeout_seconds
        self._expired = False
        self._source = -1

    def is_completed(self) -> bool:
        return all(self._flight.poll(p) for p in self._pieces)

    def is_success(self) -> bool:
        return self.is_completed() and self._first_error() is None

    def exception(self) -> BaseException | None:
        return self._error() if self.is_completed() else None

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Waits until the result is there. Raises CollectiveRevoked, CollectiveRefused and
        CollectiveTimeout; the last one after aborting the group.
        """
        seconds = timeout.total_seconds() if timeout is not None else 0.0
        deadline = time.monotonic() + seconds if seconds > 0 else self.deadline
        for p in self._pieces:
            if not p.over and not self._flight.wait(p, deadline):
                self.timeout_seconds = seconds if seconds > 0 else self.timeout_seconds
                self.expire()
                break
        error = self._error()
        if error is not None:
            raise error
        return True

    def synchronize(self) -> None:
        self.wait()

    def result(self) -> list[torch.Tensor]:
        return self._outputs

    def source_rank(self) -> int:
        return self._source

    _source_rank = source_rank

    def get_future(self) -> torch.futures.Future[list[torch.Tensor]]:
        """A future of the list of outputs, ended by one thread of this process. It fails with a
        RuntimeError of the same words as wait.
        """
        with self._lock:
            if self._future is not None:
                return self._future
            ended: torch.futures.Future[None] = torch.futures.Future()
            # An exception of a callback is one for C++ as well; set_exception is for Python alone.
            self._future = ended.then(self._result_of)
            self._ended, self._open = ended, len(self._pieces) + 1
        for p in self._pieces:
            self._flight.watch(p, self)
        self.one_ended()
        return self._future

    def _result_of(self, ended: Any) -> list[torch.Tensor]:
        error = self._error()
        if error is not None:
            raise error
        return self._outputs

    def expire(self) -> None:
        """Its time is over: the group is aborted, which ends it."""
        if not self._expired:
            self._expired = True
            self._group.abort()

    def one_ended(self) -> None:
        """Of its pieces. The last one ends the future."""
        with self._lock:
            self._open -= 1
            if self._open > 0 or self._ended is None:
                return
            ended, self._ended = self._ended, None
        ended.set_result(None)

    def _first_error(self) -> BaseException | None:
        return next((p.error for p in self._pieces if p.error is not None), None)

    def _error(self) -> BaseException | None:
        e = self._first_error()
        if self._expired:
            return CollectiveTimeout(
                f"{self._what} has not ended within {self.timeout_seconds:.0f} s: a rank has not "
                "called it, or computes longer; its group is aborted"
            )
        if isinstance(e, Revoked):
            return CollectiveRevoked(f"{self._what}: {e}")
        if isinstance(e, CollectiveFailed):
            return CollectiveRefused(f"{self._what}: {e}")
        return e


def _survives_in_cpp() -> bool:
    """Whether a Work from Python is still itself when only C++ has held it for a while."""

    class Probe(Work):
        def wait(self, timeout: timedelta | None = None) -> bool:
            return True

    class Asked(ProcessGroup):
        def barrier(self, opts: Any) -> Work:
            return Probe()

    try:
        return ProcessGroup.barrier(Asked(0, 1), BarrierOptions()).wait(timedelta(milliseconds=1))
    except RuntimeError:
        return False  # the class in C++ waited, for what never comes


_KEPT: collections.deque[RingWork] | None = (
    None if _survives_in_cpp() else collections.deque(maxlen=256)
)


def handed_over(work: RingWork) -> RingWork:
    """The work as PyTorch gets it. Where C++ would lose its Python half, the newest are kept."""
    if _KEPT is not None:
        _KEPT.append(work)
    return work


__all__ = ["CollectiveRefused", "CollectiveRevoked", "CollectiveTimeout", "RingWork", "handed_over"]
