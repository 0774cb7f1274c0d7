# SPDX-License-Identifier: Apache-2.0
"""The client of a trainer, without PyTorch.

It has the calls of the Go package client, over addresses of memory:

    client = Client.hello(spec=spec, state=tensors, gradient_elements=n, apply=optimizer)
    while True:
        try:
            begin = client.begin()
            client.fold()
            for slot in range(*begin.slots):
                client.working(begin.step, slot)
                backward(begin.step, slot, client.slot_buffer(slot))  # adds into zeroed memory
                client.slot_done(slot)
            client.reduce()
            client.vote()  # runs optimizer(step) when the step is committed
        except Revoked:
            continue  # begin tells what is computed next
        except Done:
            client.finish()  # Repeat: train on
            break
"""

from __future__ import annotations

import atexit
import ctypes
import logging
import os
import weakref
from collections.abc import Callable, Mapping, Sequence
from ctypes import byref, c_int64, c_void_p
from typing import Any

from . import _native as native
from . import _page as page
from .errors import (
    CollectiveFailed,
    Done,
    Error,
    Fenced,
    Illegal,
    Orphaned,
    Preempted,
    Refused,
    Repeat,
    Revoked,
    Torn,
)
from .hello import ask_place, say_hello, socket_path, spec_difference, trainer_words
from .ring import Ring
from .signals import Handlers
from .values import (
    Begin,
    Digest,
    Global,
    Label,
    Tensor,
    c_tensors,
    complete_spec,
    digest_of,
    digest_tensors,
    tensor_info,
)

log = logging.getLogger("phalanx")

SLICE_NS = 1_000_000_000
"""How long a wait stays out of Python at most, so that its signal handlers run."""

_KEEP_GIL_BELOW = 1 << 20  # bytes that are moved or digested while the GIL is kept: about 0.1 ms
PHASES = {  # that a trainer may announce, as the page has them
    "compute": page.PHASE_COMPUTE,
    "load": page.PHASE_LOAD,
    "save": page.PHASE_SAVE,
    "eval": page.PHASE_EVAL,
    "compile": page.PHASE_COMPILE,
}


_clients: weakref.WeakSet[Client] = weakref.WeakSet()


class Client:
    """The trainer's side of the control page. Calls are for one thread, the owner, except working,
    progress and preempt.

    While a thread waits in a call, of the ring too, the library serves heals from the registered
    memory and starts the staging of saves. So that memory changes inside of apply only. Every wait
    ends by itself when the daemon is gone for a minute (Orphaned).
    """

    def __init__(self) -> None:
        """Not for callers: see `hello`."""
        self._library = native.library()
        self._handle: int | None = None
        self._apply: Callable[[int], None] = lambda _: None
        self._take: Callable[[int], None] | None = None
        self._spec: dict[str, Any] = {}
        self._begun: Any = None
        self._pinned = -1
        self._forked = False
        self._handlers: Handlers | None = None
        self._names: dict[str, int] = {}
        self._small = False
        self.extra_bytes = self.segment_bytes = 0
        self.member = ""
        self.incarnation = 0
        self.alone = False
        """There is no daemon: a world of one."""

    @classmethod
    def hello(
        cls,
        *,
        spec: Mapping[str, Any],
        state: Sequence[Tensor],
        gradient_elements: int,
        apply: Callable[[int], None],
        count_elements: int = 64,
        extra_bytes: int = 0,
        coordinate: Callable[[int], None] | None = None,
        pinned: int = -1,
        timeout: float = 60.0,
        signals: bool = True,
    ) -> Client:
        """Registers the trainer with the daemon that started it and announces the initial state,
        that of step 0.

        spec: what all trainers of the job agree on, with the keys of docs/protocol.md; last_step,
        slots and global_batch at least. state: every tensor of the training state, on all members
        in the same order. gradient_elements: float32 that a step reduces. apply(step): the
        optimizer; it reads the reduced gradient and the state, and communicates with nobody,
        because it may run inside begin, in another world. coordinate(c) is told the shard
        coordinate before the first step and before the first byte of a heal. pinned: the only
        coordinate at which this member can be, -1 for any. signals: TERM and INT ask the daemon to
        bring the member out in order; a second INT does what it did before.

        Without a daemon (PHALANX_SOCKET is not set), or with PHALANX_DISABLE=1, the client is a
        world of one. Raises Refused when the daemon does not take the trainer, Illegal for mistakes
        in what is registered.
        """
        c = cls()
        c._apply, c._take = apply, coordinate
        c._spec = complete_spec(spec)
        c._create(state, gradient_elements, count_elements, extra_bytes)
        path = socket_path()
        try:
            if path is None:
                c.alone = True
                c._check(c._library.posts.phx_attach_alone(c._handle))
            else:
                c._join(path, state, pinned, timeout)
        except BaseException:
            c.close()
            raise
        c._small = 4 * gradient_elements < _KEEP_GIL_BELOW
        c._remember()
        if signals:
            c._handlers = Handlers(c._leave)
        c._say_notes()
        return c

    @staticmethod
    def place(group_size: int, timeout: float = 60.0) -> int:
        """At which coordinate of groups of group_size ranks this process is to sit: ask before the
        model is made.

        It stays the same for this process; give it to hello as pinned. 0 without a daemon.
        """
        return ask_place(group_size, timeout)

    def _create_plain(self, segment_bytes: int) -> None:
        self._spec = complete_spec({"last_step": 1, "slots": 1, "global_batch": 1})
        self._create((), 0, 0, segment_bytes)

    def _create(
        self, state: Sequence[Tensor], gradient_elements: int, count_elements: int, extra_bytes: int
    ) -> None:
        s = self._spec
        config = native.Config(
            s["last_step"], s["seed"], s["slots"], gradient_elements, count_elements, extra_bytes
        )
        tensors = c_tensors(state)
        handle = c_void_p()
        r = self._library.posts.phx_create(byref(config), tensors, len(state), byref(handle))
        if not handle.value:
            raise MemoryError("no memory for a client")
        self._handle = handle.value
        self.extra_bytes = extra_bytes
        self.segment_bytes = self._library.posts.phx_segment_bytes(handle.value)
        self._names = {t.name: i for i, t in enumerate(state)}
        if r != 0:
            try:
                self._check(r)
            finally:
                self.close()

    def _join(self, path: str, state: Sequence[Tensor], pinned: int, timeout: float) -> None:
        words = trainer_words()
        hello: dict[str, Any] = words | {
            "spec": self._spec,
            "state": [tensor_info(t) for t in state],
            "segment_bytes": self.segment_bytes,
            "client": "python",
            "groups": 64,
            "slabs": 2,
        }
        if pinned >= 0:
            hello["coordinate"] = pinned
            self._pinned = pinned
        welcome = say_hello(path, hello, timeout)
        difference = spec_difference(welcome["spec"], self._spec)
        if difference:
            raise Refused(
                "spec_differs",
                f"the job has another spec: {difference}",
                "start with the job's settings",
            )
        paths = welcome.get("slabs") or ([welcome["slab"]] if welcome.get("slab") else [])
        slabs = (ctypes.c_char_p * max(1, len(paths)))(*(os.fsencode(path) for path in paths))
        names, start = self._names_of(welcome), words["start"]
        self._check(self._library.posts.phx_attach(self._handle, *names, slabs, len(paths), start))
        self._start_pulse()

    def _attach_plain(self, welcome: dict[str, Any], start: int) -> None:
        names = self._names_of(welcome)
        self._check(self._library.posts.phx_attach_plain(self._handle, *names, start))
        self._start_pulse()

    def _names_of(self, welcome: dict[str, Any]) -> list[bytes]:
        self.member, self.incarnation = welcome["member"], welcome["incarnation"]
        return [os.fsencode(welcome[name]) for name in ("page", "bells", "segment")]

    def _start_pulse(self) -> None:
        if self._library.posts.phx_start_pulse(self._handle) != 0:
            log.warning(
                "the end of this process will be seen later than it could: %s", self._error()
            )

    def _remember(self) -> None:
        self._begun = self._library.posts.phx_begun(self._handle).contents
        _clients.add(self)

    def close(self) -> None:
        """Ends staging and unmaps everything. Calling it again does nothing."""
        if self._handlers is not None:
            self._handlers.restore()
        handle, self._handle = self._handle, None
        self._begun = None
        if handle is not None and not self._forked:
            self._library.waits.phx_close(handle)
        _clients.discard(self)

    def begin(self) -> Begin:
        """Waits for a seat that says run and returns the next step.

        Inside it the member serves heals, stages saves, heals itself and rolls forward, the last
        with apply. Raises Done, Preempted, Fenced, Orphaned, Torn.
        """
        self._drive(self._library.posts.phx_begin(self._live()), native.RUN)
        b = self._begun
        return Begin(
            b.step,
            (b.epoch, b.number),
            b.rank,
            b.world,
            b.group_size,
            b.coordinate,
            (b.slot_first, b.slot_end),
            b.slot_count,
            b.local_rank,
            b.local_world,
            bool(b.healed),
        )

    def working(self, step: int, slot: int) -> None:
        """Names the slot in work: a step and slot that kill two members are poison. From the owner
        or one other thread.
        """
        self._library.posts.phx_working(self._live(), step, slot)

    def progress(self, phase: str) -> None:
        """Says that the trainer lives and what it does: compute, load, save, eval or compile."""
        if phase not in PHASES:
            raise Illegal(f"phase {phase!r}; say one of {', '.join(PHASES)}")
        self._library.posts.phx_progress(self._live(), PHASES[phase])

    def preempt(self) -> None:
        """Asks the daemon to bring the member out of the world in order. From any thread, or a
        signal handler.
        """
        self._library.posts.phx_preempt(self._live())

    def _leave(self) -> None:
        if self._handle is not None:
            self.preempt()

    def fold(self) -> None:
        """Starts the sums of the begun step."""
        self._check(self._library.posts.phx_fold(self._live()))

    def slot_buffer(self, slot: int) -> int:
        """The address of zeroed float32 memory for the next slot's gradient: the sum over its
        samples is added into it.
        """
        address = (self._library.posts if self._small else self._library.waits).phx_slot_buffer(
            self._live(), slot
        )
        if not address:
            raise Illegal(self._error())
        return int(address)

    def slot_done(self, slot: int) -> None:
        """Says that the slot's gradient is complete. Its memory must not be used afterwards."""
        library = self._library.posts if self._small else self._library.waits
        self._check(library.phx_slot_done(self._live(), slot))

    def reduce(self, mean: bool = True) -> int:
        """Sums the folded gradients of the ranks with this coordinate over the slot tree, once
        multiplied by 1/S for a mean.

        Returns the address of gradient_elements float32; they stay until the next fold and must not
        be written. Raises Revoked (begin again) and CollectiveFailed.
        """
        self._drive(self._library.posts.phx_reduce(self._live(), mean), native.REDUCED)
        return int(self._library.posts.phx_reduced(self._handle))

    def reduce_counts(self, counts: Sequence[int]) -> list[int]:
        """The sums of up to count_elements int64 over the groups, modulo 2^64. Each rank gives
        those of its own slots.
        """
        numbers = native.int64s(tuple(counts))
        self._drive(
            self._library.posts.phx_reduce_counts(self._live(), numbers, len(counts)),
            native.REDUCED,
        )
        return list(self._library.posts.phx_reduced_counts(self._handle)[: len(counts)])

    def digest(self) -> Digest:
        """D1 of the reduced gradient, under keys that change with the step, and its statistics."""
        out = native.Digest()
        library = self._library.posts if self._small else self._library.waits
        self._check(library.phx_digest(self._live(), byref(out)))
        return digest_of(out)

    def vote(
        self,
        ok: bool = True,
        *,
        digest: Digest | tuple[int, int] | None = None,
        compute_ns: int | None = None,
        reduce_ns: int | None = None,
        digest_ns: int | None = None,
    ) -> bool:
        """Votes for the begun step, waits for the decision, and runs apply when it is committed.

        ok says "I hold the whole reduced gradient, final"; digest is of it, and without one it is
        taken here. Times are for the search of stragglers; without them those between begin, reduce
        and vote are taken. Returns True when the step was committed and applied, False when it is
        not decided here: call begin. The gradient must stay as it is until begin returns. Raises
        Torn from what apply raised: exit then.
        """
        if digest is None:
            digest = self.digest() if ok else (0, 0)
        value = digest.digest if isinstance(digest, Digest) else digest
        times = None
        if compute_ns is not None or reduce_ns is not None or digest_ns is not None:
            times = native.int64s((compute_ns or 0, reduce_ns or 0, digest_ns or 0))
        r = self._library.posts.phx_vote(self._live(), ok, native.pair(value), times)
        return self._drive(r, native.APPLY, native.REPEAT) == native.APPLY

    def healed(self) -> bool:
        """Whether the registered state was replaced and no begin has said so: after Done, for who
        goes on with what derives from it. Asked again it says no.
        """
        return bool(self._library.posts.phx_healed(self._live()))

    def superseded(self) -> bool:
        """Whether the begun step is over because the world has changed: what failed in it was no
        failure, call begin.
        """
        return bool(self._library.posts.phx_superseded(self._live()))

    def finish(self, digest: Digest | tuple[int, int] | None = None) -> None:
        """Says that training ended well with a state of this digest, D1 of the whole state by
        default.

        It goes on serving heals and saves until the daemon says stop. Raises Repeat when the job
        was rewound or extended: call begin.
        """
        handle = self._live()
        if digest is None:
            digest = self.state_digest()
        value = digest.digest if isinstance(digest, Digest) else digest
        r = self._library.posts.phx_finish(handle, native.pair(value))
        r = self._drive(r, native.STOPPED, native.REPEAT)
        if r == native.REPEAT:
            raise Repeat("the job was rewound or extended: train on")

    def applied(self) -> Label:
        """The label of the registered state; not valid: the state is nothing."""
        l = native.Label()
        self._library.posts.phx_label_of(self._live(), byref(l))
        return Label(
            l.step, (l.epoch, l.number), (l.digest[0], l.digest[1]), l.coordinate, bool(l.valid)
        )

    def state_digest(self) -> Digest:
        """D1 with seed 0 over all registered tensors, in the order of their names. str() of it is
        32 hexadecimal digits.
        """
        out = native.Digest()
        self._check(self._library.waits.phx_state_digest(self._live(), byref(out)))
        return digest_of(out)

    def set_address(self, name: str, address: int) -> None:
        """Gives a tensor other memory of the same size. What is registered must be the whole state
        between two calls.
        """
        if name not in self._names:
            raise Illegal(f"no tensor is called {name!r}")
        self._check(self._library.waits.phx_set_address(self._live(), self._names[name], address))

    @property
    def extra(self) -> tuple[int, int]:
        """Address and offset in the segment of the extra_bytes that were asked for."""
        offset = c_int64()
        address = self._library.posts.phx_extra(self._live(), byref(offset))
        return int(address), offset.value

    @property
    def ring(self) -> Ring:
        """Collectives of one's own, with buffers in `extra`."""
        return Ring(self)

    @property
    def spec(self) -> Mapping[str, Any]:
        """The job's spec."""
        return self._spec

    def _live(self) -> int:
        if self._handle is None:
            if self._forked:
                raise Illegal(
                    "this is a forked child of the trainer: it has no part in the job; "
                    "use the client in its parent only"
                )
            raise Illegal("the client is closed")
        return self._handle

    def _drive(self, r: int, *wanted: int) -> int:
        """Waits until the library returns one of wanted, and does meanwhile what it asks for."""
        handle = self._live()
        posts, wait = self._library.posts, self._library.waits.phx_wait
        while True:
            if r in (native.PENDING, native.TIMEOUT, native.INTERRUPTED):
                r = wait(handle, SLICE_NS)
                if r in (native.TIMEOUT, native.INTERRUPTED):
                    self._say_notes()
            elif r == native.APPLY:
                self._run_apply(posts.phx_step(handle))
                if native.APPLY in wanted:
                    return r
                r = native.PENDING
            elif r == native.COORDINATE:
                coordinate = int(posts.phx_coordinate(handle))
                if self._pinned not in (-1, coordinate):
                    raise Error(
                        f"the daemon gives coordinate {coordinate} to a member pinned to "
                        f"{self._pinned}; run daemon and package of one release"
                    )
                if self._take is not None:
                    self._take(coordinate)
                r = posts.phx_coordinate_taken(handle)
            else:
                self._say_notes()
                if r in wanted:
                    return r
                self._check(r)

    def _run_apply(self, step: int) -> None:
        try:
            self._apply(step)
        except BaseException as e:
            self._library.posts.phx_apply_failed(self._handle)
            raise Torn(f"{self._error()}: {e!r}") from e
        self._check(self._library.posts.phx_applied(self._handle))

    def _error(self) -> str:
        if self._handle is None:
            return "the client was closed by another thread"
        return str(self._library.posts.phx_error(self._handle).decode(errors="replace"))

    def _check(self, r: int) -> None:
        if r == native.PENDING:
            return
        kind = _ERRORS.get(r, Error)
        raise kind("the job's last step is applied" if r == native.DONE else self._error())

    def _say_notes(self) -> None:
        if self._handle is None:
            return
        out = ctypes.create_string_buffer(4096)
        n = self._library.posts.phx_notes(self._handle, out, len(out))
        for line in out.raw[:n].decode(errors="replace").splitlines():
            level, _, text = line.partition(" ")
            log.log(getattr(logging, level, logging.INFO), "%s", text)


_ERRORS: dict[int, type[Exception]] = {
    native.REVOKED: Revoked,
    native.FAILED: CollectiveFailed,
    native.DONE: Done,
    native.PREEMPTED: Preempted,
    native.FENCED: Fenced,
    native.ORPHANED: Orphaned,
    native.E_ILLEGAL: Illegal,
    native.E_TORN: Torn,
    native.E_ARGUMENT: Illegal,
    native.E_MEMORY: Error,
    native.E_SEAT: Error,
    native.E_RING: Illegal,
}


def _drop_in_child() -> None:
    """A forked child has none of the library's maps and threads: it forgets its handles."""
    for c in list(_clients):
        c._forked, c._handle, c._begun = True, None, None
        if c._handlers is not None:
            c._handlers.restore()
    _clients.clear()


def _close_all() -> None:
    """Staging reads memory that the interpreter is about to give back."""
    for c in list(_clients):
        c.close()


os.register_at_fork(after_in_child=_drop_in_child)
atexit.register(_close_all)

__all__ = [
    "Begin",
    "Client",
    "Digest",
    "Global",
    "Label",
    "Tensor",
    "complete_spec",
    "digest_tensors",
]
