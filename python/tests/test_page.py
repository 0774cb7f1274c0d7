# SPDX-License-Identifier: Apache-2.0
"""The page as C writes it is the page as Go writes it: the replays of client/wire/testdata."""

from __future__ import annotations

import ctypes
import json
from typing import Any

import pytest

import phalanx
from phalanx import _page as page
from phalanx._native import library
from phalanx.client import Global, Tensor
from running import ROOT

TESTDATA = ROOT / "client" / "wire" / "testdata"
LAYOUT = vars(page)


class Memory:
    """64 KiB at an aligned address."""

    def __init__(self) -> None:
        self.buffer = ctypes.create_string_buffer(page.PAGE_BYTES + 64)
        self.address = (ctypes.addressof(self.buffer) + 63) // 64 * 64
        self.words = (ctypes.c_uint64 * (page.PAGE_BYTES // 8)).from_address(self.address)


def place_of(name: str, place: int) -> int:
    return int(LAYOUT[f"{name}_AT"]) + place * int(LAYOUT.get(f"{name}_STRIDE", 0))


def payload(numbers: list[str]) -> Any:
    return (ctypes.c_uint64 * len(numbers))(*(int(n, 16) for n in numbers))


def cases() -> list[Any]:
    return list(json.loads((TESTDATA / "replay.json").read_text()))


@pytest.mark.parametrize("case", cases(), ids=lambda c: c["name"])
def test_replay(case: dict[str, Any]) -> None:
    posts, memory = library().posts, Memory()
    posts.phx_page_write_header(memory.address, case["daemon_bell"], case["trainer_bell"])
    posted = 0
    for write in case["writes"] or []:
        name, values = write["name"], payload(write["payload"])
        if name == "T_RING":
            posted += 1
            at = place_of(name, (posted - 1) % page.T_RING_PLACES)
            values[page.T_RING_SEQUENCE] = posted
            for i in range(page.T_RING_WORDS):
                value = values[i] if i < len(values) else 0
                posts.phx_word_write(memory.address, at + 8 * i, value)
            posts.phx_word_write(memory.address, page.T_RING_HEAD_AT, posted)
            continue
        at = place_of(name, write["place"])
        if f"{name}_WORDS" not in LAYOUT:
            posts.phx_word_write(memory.address, at, values[0])
            continue
        assert len(values) == LAYOUT[f"{name}_WORDS"], name
        posts.phx_cell_write(memory.address, at, values, len(values))
        back = (ctypes.c_uint64 * len(values))()
        assert posts.phx_cell_read(memory.address, at, back, len(values)) > 0
        assert list(back) == list(values)
    have = {8 * i: w for i, w in enumerate(memory.words) if w}
    assert have == {w["offset"]: int(w["value"], 16) for w in case["words"]}
    assert posts.phx_page_check(memory.address, page.PAGE_BYTES, None, 0) == 0


def test_offsets() -> None:
    for line in json.loads((TESTDATA / "offsets.json").read_text()):
        name = line["Name"]
        if name.startswith(("D_", "T_", "S_")):
            assert LAYOUT[f"{name}_AT"] == line["Offset"], name
            assert LAYOUT.get(f"{name}_PLACES", 1) == line["Count"], name
            if line["Cell"]:
                assert LAYOUT[f"{name}_WORDS"] <= line["Words"] or name == "T_RING", name


def test_cell_that_was_never_written() -> None:
    memory, out = Memory(), (ctypes.c_uint64 * 3)()
    assert library().posts.phx_cell_read(memory.address, page.D_COMMIT_AT, out, 3) == 0


@pytest.mark.parametrize(
    ("word", "value", "says"),
    [
        (page.HEADER_MAGIC, 1, "not a control page"),
        (page.HEADER_VERSION, (page.MAJOR + 1) << 32, "of one release"),
        (page.HEADER_SIZE, page.PAGE_BYTES - 1, "size word"),
        (page.HEADER_SIZE, page.PAGE_BYTES + 1, "size word"),
        (page.HEADER_DAEMON_BELL, page.BELL_LINES, "bell beyond"),
        (page.HEADER_TRAINER_BELL, page.BELL_LINES, "bell beyond"),
    ],
)
def test_pages_that_are_refused(word: int, value: int, says: str) -> None:
    memory, error = Memory(), ctypes.create_string_buffer(400)
    library().posts.phx_page_write_header(memory.address, 1, 2)
    memory.words[word] = value
    assert library().posts.phx_page_check(memory.address, page.PAGE_BYTES, error, 400) != 0
    assert says in error.value.decode()


def test_newer_minor_layout_is_read() -> None:
    memory = Memory()
    library().posts.phx_page_write_header(memory.address, 1, 2)
    memory.words[page.HEADER_VERSION] += 7
    assert library().posts.phx_page_check(memory.address, page.PAGE_BYTES, None, 0) == 0


def made(tensors: list[Tensor]) -> phalanx.Client:
    client = phalanx.Client()
    client._spec = {"last_step": 1, "seed": 0, "slots": 1}
    client._create(tensors, 0, 1, 0)
    return client


def test_slab() -> None:
    sizes = {"f32": 4, "i64": 8, "u8": 1, "bf16": 2}
    for case in json.loads((TESTDATA / "slab.json").read_text()):
        tensors = []
        for t in case["tensors"]:
            n = sizes[t["dtype"]]
            for d in t["shape"]:
                n *= d
            box = t.get("global")
            tensors.append(
                Tensor(
                    t["name"],
                    t["dtype"],
                    tuple(t["shape"]),
                    64,
                    n,
                    Global(tuple(box["shape"]), tuple(box["offset"])) if box else None,
                    t.get("per_rank", False),
                )
            )
        client = made(tensors)
        posts, handle = client._library.posts, client._handle
        assert [posts.phx_slab_offset(handle, i) for i in range(len(tensors))] == case["offsets"]
        assert posts.phx_slab_bytes(handle) == case["total"]
        assert posts.phx_layout_hash(handle) == int(case["hash"], 16)
        client.close()


def fnv(data: bytes) -> int:
    h = 0xCBF29CE484222325
    for b in data:
        h = (h ^ b) * 0x100000001B3 & (1 << 64) - 1
    return h


def test_layout_hash_of_boxes() -> None:
    """As client/wire/slab.go spells it."""
    client = made([Tensor("w", "f32", (2, 3), 64, 24, Global((4, 3), (2, 0)), True)])
    want = fnv(b"w\0f32\x002,3\0of 4,3 at 2,0\0per rank\0")
    assert client._library.posts.phx_layout_hash(client._handle) == want
    client.close()


@pytest.mark.parametrize(
    ("tensors", "says"),
    [
        ([Tensor("w", "f31", (1,), 64, 4)], "dtype f31 is unknown"),
        ([Tensor("w", "f32", (2,), 64, 4)], "needs 8"),
        ([Tensor("w", "f32", (-1,), 64, 4)], "dimension 0 is -1"),
        ([Tensor("w", "f32", (1 << 40, 1 << 40), 64, 4)], "dimension 1"),
        ([Tensor("w", "f32", (1,), 64, 4), Tensor("w", "f32", (1,), 64, 4)], "two tensors"),
        ([Tensor("w\0", "f32", (1,), 64, 4)], "no NUL"),
        ([Tensor("w", "f32", (1,), 64, 4, Global((1, 1), (0, 0)))], "dimensions"),
    ],
)
def test_tensors_that_are_refused(tensors: list[Tensor], says: str) -> None:
    with pytest.raises(phalanx.Illegal, match=says):
        made(tensors)
