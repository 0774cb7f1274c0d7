# SPDX-License-Identifier: Apache-2.0
"""The client in a world of one, without a daemon: the same calls, so the same mistakes are
refused.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import phalanx
from phalanx import Client, Digest, Done, Illegal, Preempted, Torn
from running import ROOT
from toy import Model, Toy, floats


@pytest.fixture(autouse=True)
def nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PHALANX_SOCKET", raising=False)


class Alone:
    """A client of one step after the other over a model of a few numbers."""

    def __init__(self, steps: int = 3, slots: int = 3, **more: Any) -> None:
        self.model = Model(24)
        self.applied: list[int] = []
        spec = {"last_step": steps, "slots": slots, "global_batch": slots}
        more = {"apply": self.apply} | more
        self.client = Client.hello(
            spec=spec, state=self.model.tensors(), gradient_elements=24, signals=False, **more
        )

    def apply(self, step: int) -> None:
        self.applied.append(step)
        self.model.apply(step, floats(self.reduced, 24))

    def fold(self, begin: phalanx.Begin) -> None:
        self.client.fold()
        for slot in range(*begin.slots):
            self.client.working(begin.step, slot)
            self.model.gradient(floats(self.client.slot_buffer(slot), 24), begin.step, slot)
            self.client.slot_done(slot)

    def step(self) -> bool:
        self.fold(self.client.begin())
        self.reduced = self.client.reduce()
        return self.client.vote()


@pytest.fixture
def alone() -> Iterator[Alone]:
    a = Alone()
    yield a
    a.client.close()


def test_steps(alone: Alone) -> None:
    assert alone.client.alone
    assert alone.client.applied() == (0, (0, 0), (0, 0), -1, True)
    begin = alone.client.begin()
    assert (begin.step, begin.slots, begin.world, begin.healed) == (1, (0, 3), 1, False)
    while True:
        try:
            assert alone.step()
        except Done:
            break
    assert alone.applied == [1, 2, 3]
    label = alone.client.applied()
    assert (label.step, label.valid, label.coordinate) == (3, True, 0)
    alone.client.finish()


def test_mean_is_that_of_the_slot_tree(alone: Alone) -> None:
    """((s0 + s1) + s2) · (1/3), each operation rounded to float32."""
    f = ctypes.c_float
    begin = alone.client.begin()
    alone.client.fold()
    for slot in range(*begin.slots):
        floats(alone.client.slot_buffer(slot), 24)[:] = [(slot + 1) * 0.1 + i for i in range(24)]
        alone.client.slot_done(slot)
    got = list(floats(alone.client.reduce(), 24))
    third = f(1 / 3).value
    for i in range(24):
        a, b, c = (f((slot + 1) * 0.1 + i).value for slot in range(3))
        assert got[i] == f(f(f(a + b).value + c).value * third).value


def test_sum_and_counts(alone: Alone) -> None:
    alone.fold(alone.client.begin())
    assert alone.client.reduce_counts([5, -7, 1 << 62]) == [5, -7, 1 << 62]
    with pytest.raises(Illegal, match="64 were registered"):
        alone.client.reduce_counts(range(65))
    mean = list(floats(alone.client.reduce(), 24))
    total = list(floats(alone.client.reduce(mean=False), 24))
    assert total != mean and all(abs(t - 3 * m) < 1e-5 for t, m in zip(total, mean, strict=True))


def test_a_vote_that_is_not_ok_repeats_the_step(alone: Alone) -> None:
    alone.fold(alone.client.begin())
    alone.client.reduce()
    assert not alone.client.vote(ok=False)
    assert alone.applied == []
    assert alone.client.begin().step == 1
    assert alone.step() and alone.applied == [1]


def test_digest_changes_with_the_step(alone: Alone) -> None:
    digests = set()
    for _ in range(2):
        alone.fold(alone.client.begin())
        alone.reduced = alone.client.reduce()
        d = alone.client.digest()
        numbers = floats(alone.reduced, 24)
        assert d.abs_max == max(abs(x) for x in numbers) and d.non_finite == 0
        digests.add(str(d))
        alone.client.vote(digest=d)
    assert len(digests) == 2


Call = Callable[[Alone], object]


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda a: a.client.fold(), "call begin first"),
        (lambda a: a.client.reduce(), "call begin first"),
        (lambda a: a.client.vote(digest=(1, 2)), "call begin first"),
        (lambda a: a.client.digest(), "call begin first"),
        (lambda a: a.client.slot_buffer(0), "buffer of slot 0"),
        (lambda a: (a.client.begin(), a.client.reduce()), "fold all of them"),
        (lambda a: (a.client.begin(), a.client.fold(), a.client.slot_buffer(1)), "next one is 0"),
        (lambda a: (a.client.begin(), a.client.fold(), a.client.slot_done(0)), "slot 0 is done"),
        (
            lambda a: (
                a.client.begin(),
                a.client.fold(),
                a.client.slot_buffer(0),
                a.client.slot_buffer(0),
            ),
            "next one is 0",
        ),
        (lambda a: a.client.progress("lunch"), "say one of"),
        (lambda a: a.client.set_address("x", 64), "no tensor"),
        (lambda a: (a.client.close(), a.client.begin()), "closed"),
    ],
)
def test_calls_out_of_order(alone: Alone, call: Call, says: str) -> None:
    with pytest.raises(Illegal, match=says):
        call(alone)


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ({"slots": 1, "global_batch": 1}, "lacks last_step"),
        ({"last_step": 1, "slots": 3, "global_batch": 4}, "do not divide"),
        ({"last_step": 0, "slots": 1, "global_batch": 1}, "at least 1"),
        ({"last_step": 1, "slots": 1, "global_batch": 1, "steps": 3}, "'steps'"),
    ],
)
def test_specs_that_are_refused(spec: dict[str, int], says: str) -> None:
    with pytest.raises(Illegal, match=says):
        Client.hello(spec=spec, state=[], gradient_elements=1, apply=lambda _: None, signals=False)


def test_optimizer_that_fails_leaves_a_torn_state(alone: Alone) -> None:
    def fails(step: int) -> None:
        raise ZeroDivisionError("in the optimizer")

    alone.client._apply = fails
    with pytest.raises(Torn, match="in the optimizer"):
        alone.step()
    assert not alone.client.applied().valid
    for call in (alone.client.begin, alone.client.reduce, alone.client.finish):
        with pytest.raises(Torn):
            call()


def test_coordinate_is_told_once() -> None:
    told: list[int] = []
    a = Alone(coordinate=told.append)
    a.step()
    a.step()
    assert told == [0]
    a.client.close()


def test_memory_that_moves(alone: Alone) -> None:
    alone.step()
    before = alone.client.state_digest()
    moved = (ctypes.c_float * 24)(*alone.model.w)
    alone.client.set_address("w", ctypes.addressof(moved))
    assert alone.client.state_digest() == before
    moved[0] += 1
    assert alone.client.state_digest() != before


def test_extra_memory_is_apart() -> None:
    a = Alone(extra_bytes=256)
    address, offset = a.client.extra
    assert offset % 64 == 0 and a.client.extra_bytes == 256
    ctypes.memset(address, 0xFF, 256)
    a.fold(a.client.begin())
    assert isinstance(a.client.digest(), Digest)
    assert ctypes.string_at(address, 256) == b"\xff" * 256
    a.client.close()


def test_disabled_by_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PHALANX_SOCKET", "/nowhere")
    monkeypatch.setenv("PHALANX_DISABLE", "1")
    a = Alone()
    assert a.client.alone and a.step()
    a.client.close()


def test_daemon_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PHALANX_SOCKET", "/nowhere/socket")
    with pytest.raises(phalanx.Error, match="does not answer"):
        Alone()


def test_preempted_alone(alone: Alone) -> None:
    alone.step()
    alone.client.preempt()
    with pytest.raises(Preempted):
        alone.client.begin()


def test_signals_ask_to_leave_and_chain() -> None:
    heard: list[int] = []
    before = {n: signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT)}
    signal.signal(signal.SIGTERM, lambda n, _: heard.append(n))
    mine = signal.getsignal(signal.SIGTERM)
    try:
        t = Toy(1000)
        t.client = Client.hello(
            spec=t.spec, state=t.model.tensors(), gradient_elements=t.model.n, apply=t.apply
        )
        t.step()
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(Preempted):
            t.step()
        assert heard == [signal.SIGTERM]
        os.kill(os.getpid(), signal.SIGINT)  # the first one only asks
        time.sleep(0.01)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(1)
        t.client.close()
        assert signal.getsignal(signal.SIGTERM) is mine
    finally:
        for n, handler in before.items():
            signal.signal(n, handler)


def test_forked_child_has_no_part(alone: Alone) -> None:
    alone.step()
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            alone.client.begin()
        except BaseException as e:
            os.write(write, f"{type(e).__name__}: {e}".encode())
        finally:
            os._exit(0)
    os.close(write)
    said = os.read(read, 1000).decode()
    os.waitpid(child, 0)
    os.close(read)
    assert said.startswith("Illegal: this is a forked child")
    assert alone.step()


def test_spawned_interpreter_imports_quickly() -> None:
    """The import loads no library, reads no environment, and does not need PyTorch."""
    code = (
        "import sys, phalanx, phalanx._native as n; "
        "assert n._library is None; assert 'torch' not in sys.modules"
    )
    env = os.environ | {"PYTHONPATH": str(ROOT / "python" / "src"), "PHALANX_LIBRARY": "/nowhere"}
    subprocess.run([sys.executable, "-c", code], check=True, timeout=30, env=env)


def test_progress_from_another_thread(alone: Alone) -> None:
    begin = alone.client.begin()
    over = threading.Event()

    def tell() -> None:
        while not over.is_set():
            alone.client.progress("compile")
            alone.client.working(begin.step, 0)

    t = threading.Thread(target=tell)
    t.start()
    try:
        for _ in range(3):
            assert alone.step()
    finally:
        over.set()
        t.join()
