# SPDX-License-Identifier: Apache-2.0
"""Collectives of one's own over the ring of the page: groups of any ranks, several under way at
once, from any thread.

docs/protocol.md says what each operation means, and that buffers lie in the segment; offsets here
are those of the segment.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from ctypes import byref, c_int, c_int64, c_uint64
from typing import Any, NamedTuple

from . import _native as native
from . import _page as page
from .errors import CollectiveFailed, Error, Illegal, Orphaned, Refused, Revoked
from .hello import ask_until, say_hello, socket_path, trainer_words

WORLD = (1 << 64) - 1
"""The group of all ranks of the generation."""

FIRST_GROUP = 1 << 32
"""The lowest id of a group that trainers make; below lie the coordinates."""

OPS: dict[str, int] = {k[3:].lower(): v for k, v in vars(page).items() if k.startswith("OP_")}
DTYPES: dict[str, int] = {k[6:].lower(): v for k, v in vars(page).items() if k.startswith("DTYPE_")}
REDUCTIONS: dict[str, int] = {
    k[10:].lower(): v for k, v in vars(page).items() if k.startswith("REDUCTION_")
}

_SLICE_NS = 1_000_000_000


class Place(NamedTuple):
    """Where this process is in a world. generation (0, 0): nowhere yet."""

    generation: tuple[int, int]
    rank: int
    world: int
    local_rank: int
    local_world: int
    action: int


class Ring:
    """Posts collectives and waits for them. All calls may come from any thread."""

    def __init__(self, client: Any) -> None:
        """Not for callers: see `Client.ring` and `Ring.hello`. client holds the handle and ends
        it.
        """
        self._client = client
        self._library = native.library()
        self._socket = socket_path()

    @classmethod
    def hello(cls, segment_bytes: int, timeout: float = 60.0) -> Ring:
        """Says hello for a process of a job without steps (`run --plain`) that wants collectives
        over segment_bytes.

        Without a daemon it is a world of one.
        """
        from .client import Client

        path = socket_path()
        c = Client()
        c._create_plain(segment_bytes)
        try:
            if path is None:
                c.alone = True
                c._check(c._library.posts.phx_attach_alone(c._handle))
            else:
                words = trainer_words()
                hello = words | {
                    "plain": True,
                    "segment_bytes": c.segment_bytes,
                    "client": "python",
                }
                c._attach_plain(say_hello(path, hello, timeout), words["start"])
        except BaseException:
            c.close()
            raise
        c._remember()
        return cls(c)

    def close(self) -> None:
        """Ends the client of a process without steps. Nothing may be under way or waited for."""
        self._client.close()

    @property
    def memory(self) -> tuple[int, int, int]:
        """Address, offset in the segment, and size in bytes of the memory for buffers."""
        offset = c_int64()
        address = self._library.posts.phx_extra(self._client._live(), byref(offset))
        return int(address), offset.value, self._client.extra_bytes

    def place(self, timeout: float = 0.0) -> Place:
        """The present seat; with a timeout in seconds it is waited for. Raises Illegal when there
        is none.
        """
        deadline = time.monotonic() + timeout
        out = native.Begun()
        while True:
            action = self._library.posts.phx_seat(self._client._live(), byref(out))
            if action >= 0:
                return Place(
                    (out.epoch, out.number),
                    out.rank,
                    out.world,
                    out.local_rank,
                    out.local_world,
                    action,
                )
            if time.monotonic() >= deadline:
                raise Illegal(f"no seat within {timeout:.0f} s; look at phalanx status")
            time.sleep(0.002)

    def make_group(
        self,
        group: int,
        ranks: Sequence[int],
        generation: tuple[int, int] | None = None,
        timeout: float = 30.0,
    ) -> None:
        """Makes a group of ranks known, before the first descriptor that names it; with the same
        ranks it may be repeated.

        generation: that of the seat by default. Raises Refused; its code is fenced when the
        generation is over.
        """
        if self._socket is None:
            return  # a world of one has one group
        body: dict[str, Any] = {"id": group, "ranks": list(ranks)}
        if generation is not None:
            epoch, number = generation
            body["generation"] = f"{epoch}.{number}" if epoch else number
        deadline = time.monotonic() + timeout
        while True:
            try:
                left = max(0.1, deadline - time.monotonic())
                ask_until(self._socket, "POST", "/v1/group", body, left)
                return
            except Refused:
                raise
            except Error:
                # Its daemon may be on its way back beside this process. Asking twice does no harm.
                if time.monotonic() >= deadline:
                    raise
            time.sleep(0.02)

    def post(
        self,
        op: str,
        *,
        group: int,
        dtype: str = "none",
        count: int = 0,
        in_offset: int = 0,
        out_offset: int = 0,
        root: int = -1,
        peer: int = -1,
        tag: int = 0,
        mean: bool = False,
        reduction: str = "sum",
        counts_offset: int | None = None,
        generation: tuple[int, int] = (0, 0),
        timeout: float = 600.0,
    ) -> int:
        """Posts a collective and returns its sequence, for `done` and `wait_any`. generation (0, 0)
        is that of the seat.

        While 64 are under way it waits for the oldest one.
        """
        d = native.Descriptor(
            *generation,
            OPS[op],
            DTYPES[dtype],
            group,
            root,
            count,
            in_offset,
            0,
            1,
            out_offset,
            int(mean),
            page.COLL_FLAG_NONE if counts_offset is None else page.COLL_FLAG_COUNTS,
            REDUCTIONS[reduction],
            peer,
            tag,
            counts_offset or 0,
        )
        deadline = time.monotonic() + timeout
        while True:
            sequence = int(self._library.posts.phx_post(self._client._live(), byref(d)))
            if sequence > 0:
                return sequence
            if sequence != native.E_RING:
                raise Illegal(f"{op}: the ring takes nothing")
            if time.monotonic() >= deadline:
                raise Error(
                    f"{op}: 64 collectives are under way and none has ended within {timeout:.0f} s"
                )
            time.sleep(0.0005)

    def done(self, sequence: int) -> bool:
        """Whether a collective has ended. Raises Revoked and CollectiveFailed as `wait` does."""
        return self._result(sequence, self._library.posts.phx_done(self._client._live(), sequence))

    def wait(self, sequence: int, timeout: float | None = None) -> None:
        """Waits until a collective has ended; its buffers are not used any more then. TimeoutError
        after timeout seconds.

        Raises Revoked (its generation or group has ended) and CollectiveFailed (what was asked for
        does not fit).
        """
        self.wait_any([sequence], timeout)

    def wait_any(self, sequences: Sequence[int], timeout: float | None = None) -> int:
        """Waits until one of several has ended and returns its place in the list. Raises as
        `wait`.
        """
        n = len(sequences)
        numbers = (c_uint64 * n)(*sequences)
        which = c_int()
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            left = _SLICE_NS if deadline is None else int(1e9 * (deadline - time.monotonic()))
            r = self._library.waits.phx_wait_any(
                self._client._live(), numbers, n, max(0, min(left, _SLICE_NS)), byref(which)
            )
            if r == native.TIMEOUT and deadline is not None and time.monotonic() >= deadline:
                raise TimeoutError(f"none of {n} collectives has ended within {timeout} s")
            if r in (native.TIMEOUT, native.INTERRUPTED):
                continue
            if r == native.ORPHANED:
                raise Orphaned("no daemon has lived for a minute; start phalanx run again")
            self._result(sequences[which.value], r)
            return which.value

    def abort(self, group: int, generation: tuple[int, int], timeout: float = 5.0) -> None:
        """Ends all operations of a group, everywhere: they raise Revoked. Waits until that is so
        here.
        """
        deadline = time.monotonic() + timeout
        while (
            ticket := int(self._library.posts.phx_abort(self._client._live(), *generation, group))
        ) < 0:
            if time.monotonic() >= deadline:
                raise Error(f"abort of group {group:#x}: eight are under way")
            time.sleep(0.001)
        if self._client.alone:
            return
        while (
            r := self._library.posts.phx_aborted(self._client._live(), ticket)
        ) == native.PENDING:
            if time.monotonic() >= deadline:
                raise Error(
                    f"abort of group {group:#x}: the daemon has not answered within {timeout:.0f} s"
                )
            time.sleep(0.0002)
        if r == native.FAILED:
            raise Illegal(f"group {group:#x} cannot be aborted: it is not one that trainers make")

    def _result(self, sequence: int, r: int) -> bool:
        if r == native.PENDING:
            return False
        if r == native.REVOKED:
            raise Revoked(f"collective {sequence}: its generation or its group has ended")
        if r == native.FAILED:
            raise CollectiveFailed(f"collective {sequence} failed; see the daemon's log")
        if r < 0:
            raise Illegal(f"collective {sequence} is not one of the newest 4096 of this process")
        return True


__all__ = ["DTYPES", "FIRST_GROUP", "OPS", "REDUCTIONS", "WORLD", "Place", "Ring"]
