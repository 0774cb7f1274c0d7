# SPDX-License-Identifier: Apache-2.0
"""The collectives of this process that are under way: their memory in the segment, and who ends
them.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from ctypes import byref, c_int, c_uint64
from typing import Any

import torch

from .. import _native as native
from ..errors import CollectiveFailed, Error, Illegal, Orphaned, Revoked
from ..ring import Ring
from .space import Space

log = logging.getLogger("phalanx")

SLICE_NS = 1_000_000_000
"""How long a wait stays out of Python at most, so that its signal handlers run."""

_PLACES = 64  # of the ring
PIECE_BYTES = 16 << 20
"""Larger tensors go through the segment in pieces of at most so many bytes."""
SEGMENT_BYTES = 128 << 20
"""Shared memory of a process for collectives, unless PHALANX_SEGMENT_BYTES says otherwise."""


class Piece:
    """One descriptor under way. `finish` copies the result out; it runs once, when the piece has
    ended well.
    """

    __slots__ = ("blocks", "error", "finish", "keep", "lock", "over", "sequence")

    def __init__(
        self,
        blocks: list[tuple[int, int]],
        finish: Callable[[], None] | None,
        keep: torch.Tensor | None = None,
    ) -> None:
        """keep: a tensor whose own memory the daemon reads or writes."""
        self.blocks, self.finish, self.keep = blocks, finish, keep
        self.sequence = 0
        self.over = False
        self.error: BaseException | None = None
        self.lock = threading.Lock()


class Flight:
    """Posts pieces and ends them. All calls may come from any thread."""

    def __init__(self, ring: Ring) -> None:
        self.ring = ring
        self.pid = os.getpid()
        self.space = Space(*ring.memory)
        self.piece_bytes = min(PIECE_BYTES, self.space.nbytes // 3 // 4096 * 4096)
        if self.piece_bytes < 1 << 16:
            raise Illegal(
                f"{self.space.nbytes} bytes of shared memory are too few for collectives of "
                "tensors; give extra_bytes of 1 MiB or more, or set PHALANX_SEGMENT_BYTES"
            )
        self._library = native.library()
        self._lock = threading.RLock()
        self._posting = threading.Lock()
        self._pieces: dict[int, Piece] = {}
        self._watch: Watch | None = None

    def take(self, nbytes: int, deadline: float) -> int:
        """A block of the segment. While there is none, what is under way is waited for."""
        while True:
            with self._lock:
                start = self.space.take(nbytes)
            if start is not None:
                return start
            if self.reap():
                continue
            if nbytes > self.space.nbytes:
                raise Error(
                    f"{nbytes} bytes do not fit into the {self.space.nbytes} bytes of shared "
                    "memory of this process; set PHALANX_SEGMENT_BYTES to more"
                )
            if time.monotonic() >= deadline:
                raise TimeoutError(
                    f"no {nbytes} bytes of shared memory became free in time: "
                    f"{self.space.free_bytes} of {self.space.nbytes} are; wait for works, free "
                    "tensors that were allocated in it, or set PHALANX_SEGMENT_BYTES to more"
                )
            sequences = list(self._pieces)[:_PLACES]
            if not sequences:
                time.sleep(0.001)  # tensors of the caller's own have it, or another thread takes it
                continue
            self._await(sequences, min(deadline, time.monotonic() + 1))

    def give(self, blocks: list[tuple[int, int]]) -> None:
        """Takes blocks back."""
        with self._lock:
            for start, nbytes in blocks:
                self.space.give(start, nbytes)

    def post(self, piece: Piece, deadline: float, **descriptor: Any) -> None:
        """Posts a piece. Its blocks are given back when it has ended."""
        try:
            with self._posting:  # a sequence is entered before the next one is drawn
                piece.sequence = self.ring.post(
                    **descriptor, timeout=max(0.1, deadline - time.monotonic())
                )
                self._pieces[piece.sequence] = piece
        except BaseException:
            self.give(piece.blocks)
            raise

    def reap(self) -> int:
        """Ends what has ended meanwhile, and says how many."""
        done, n = self._library.posts.phx_done, 0
        handle = self.ring._client._live()
        for sequence, piece in list(self._pieces.items()):
            r = done(handle, sequence)
            if r != native.PENDING:
                self.end(piece, r)
                n += 1
        return n

    def poll(self, piece: Piece) -> bool:
        """Whether a piece has ended, ending it if need be."""
        if not piece.over:
            r = self._library.posts.phx_done(self.ring._client._live(), piece.sequence)
            if r != native.PENDING:
                self.end(piece, r)
        return piece.over

    def wait(self, piece: Piece, deadline: float) -> bool:
        """Waits until a piece has ended; False when the deadline has passed before."""
        while not piece.over:
            r = self._await([piece.sequence], deadline)
            if r in (native.TIMEOUT, native.INTERRUPTED):
                if not piece.over and time.monotonic() >= deadline:
                    return False
                continue
            self.end(piece, r)
        return True

    def _await(self, sequences: list[int], deadline: float) -> int:
        n = len(sequences)
        which = c_int()
        left = int(1e9 * (deadline - time.monotonic()))
        r: int = self._library.waits.phx_wait_any(
            self.ring._client._live(),
            (c_uint64 * n)(*sequences),
            n,
            max(0, min(left, SLICE_NS)),
            byref(which),
        )
        if r == native.ORPHANED:
            raise Orphaned("no daemon has lived for a minute; start phalanx run again")
        return r

    def end(self, piece: Piece, r: int) -> None:
        """Notes how a piece ended, and copies its result out. The first who comes does it."""
        with piece.lock:
            if piece.over:
                return
            try:
                if r == native.REDUCED:
                    if piece.finish is not None:
                        piece.finish()
                elif r == native.REVOKED:
                    piece.error = Revoked("its generation or its group has ended")
                else:
                    piece.error = CollectiveFailed("the daemon refuses it; see the daemon's log")
            except BaseException as e:
                piece.error = e
            finally:
                piece.finish = piece.keep = None
                self._pieces.pop(piece.sequence, None)
                self.give(piece.blocks)
                piece.over = True

    def watch(self, piece: Piece, work: Any) -> None:
        """Calls `work.one_ended` once a piece has ended, from the one thread of this process for
        that, or at once; and `work.expire` when its deadline has passed before.
        """
        with self._lock:
            if self._watch is None:
                self._watch = Watch(self)
        self._watch.add(piece, work)


class Watch:
    """One thread that waits in C, without the GIL, for the pieces somebody is called for."""

    def __init__(self, flight: Flight) -> None:
        self._flight = flight
        self._changed = threading.Condition()
        self._wanted: dict[int, list[tuple[Piece, Any]]] = {}
        self._numbers = (c_uint64 * (2 * _PLACES))()
        self._used = 0
        self._thread = threading.Thread(target=self._run, name="phalanx-works", daemon=True)
        self._thread.start()

    def add(self, piece: Piece, work: Any) -> None:
        with self._changed:
            self._wanted.setdefault(piece.sequence, []).append((piece, work))
            # The thread may be in C with these numbers: it reads them again whenever it is rung,
            # which happens when this piece ends.
            if self._used < len(self._numbers):
                self._numbers[self._used] = piece.sequence
                self._used += 1
            self._changed.notify()
        if self._flight.poll(piece):  # it may have ended before the number stood there
            self._call(piece.sequence)

    def _run(self) -> None:
        flight, which = self._flight, c_int()
        while True:
            with self._changed:
                while not self._wanted:
                    self._changed.wait()
                waiting = list(self._wanted)[: len(self._numbers)]
                self._used = len(waiting)
                for i in range(len(self._numbers)):
                    self._numbers[i] = waiting[i] if i < len(waiting) else waiting[0]
            handle = flight.ring._client._handle
            if handle is None:
                return  # closed: the process ends
            r = flight._library.waits.phx_wait_any(
                handle, self._numbers, len(self._numbers), SLICE_NS, byref(which)
            )
            if flight.ring._client._handle is None:
                return  # closed meanwhile
            if r in (native.TIMEOUT, native.INTERRUPTED):
                self._expire()
                continue
            if r == native.ORPHANED:  # nobody will ever answer
                ended, r = list(self._wanted), native.REVOKED
            else:
                ended = [self._numbers[which.value]]
            for sequence in ended:
                for piece, _ in self._wanted.get(sequence, ()):
                    flight.end(piece, r)
                self._call(sequence)

    def _call(self, sequence: int) -> None:
        with self._changed:
            calls = self._wanted.pop(sequence, [])
        for _, work in calls:
            try:
                work.one_ended()
            except Exception:
                log.exception("what was to run after a collective has failed")

    def _expire(self) -> None:
        now = time.monotonic()
        with self._changed:
            works = {id(w): w for calls in self._wanted.values() for _, w in calls}
        for work in works.values():
            if work.deadline <= now:
                try:
                    work.expire()
                except Exception:
                    log.exception("a collective has taken too long, and its group was not aborted")


_flight: Flight | None = None
_flight_lock = threading.Lock()


def segment_bytes() -> int:
    """PHALANX_SEGMENT_BYTES, or the default."""
    text = os.environ.get("PHALANX_SEGMENT_BYTES", "")
    if not text:
        return SEGMENT_BYTES
    try:
        n = int(text)
    except ValueError:
        n = 0
    if n < 1 << 20:
        raise Illegal(
            f"PHALANX_SEGMENT_BYTES is {text!r}; it is a number of bytes, 1048576 or more"
        )
    return n


def flight(timeout: float = 60.0) -> Flight:
    """That of this process: over the client of the elastic loop if there is one, else over a hello
    of its own.
    """
    global _flight
    with _flight_lock:
        f = _flight
        if f is not None and f.pid == os.getpid() and f.ring._client._handle is not None:
            return f
        if f is not None and f.pid != os.getpid():
            raise Illegal(
                "a forked process has no collectives: start it with the method spawn, or make "
                "process groups in the process that phalanx run started"
            )
        from ..client import _clients

        living = [c for c in _clients if c._handle is not None and c.extra_bytes > 0]
        ring = living[0].ring if living else Ring.hello(segment_bytes(), timeout)
        _flight = Flight(ring)
        return _flight


def _drop_in_child() -> None:
    global _flight_lock
    _flight_lock = threading.Lock()  # another thread may have held it


os.register_at_fork(after_in_child=_drop_in_child)

__all__ = ["PIECE_BYTES", "Flight", "Piece", "flight", "segment_bytes"]
