# SPDX-License-Identifier: Apache-2.0
"""Safetensors into a model: what fits, what does not, and files that lie."""

from __future__ import annotations

import json
import pathlib
import struct

import pytest
import torch

from phalanx.torch.weights import WeightsError, load_weights


def write(path: pathlib.Path, tensors: dict[str, torch.Tensor], header: dict | None = None) -> pathlib.Path:
    names = {torch.float32: "F32", torch.bfloat16: "BF16", torch.int64: "I64"}
    body, told = b"", {"__metadata__": {"format": "pt"}}
    for name, t in tensors.items():
        raw = bytes(t.contiguous().reshape(-1).view(torch.uint8).tolist()) if t.numel() else b""
        told[name] = {"dtype": names[t.dtype], "shape": list(t.shape), "data_offsets": [len(body), len(body) + len(raw)]}
        body += raw
    text = json.dumps(header if header is not None else told).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + body)
    return path


def model() -> torch.nn.Module:
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))


def other() -> dict[str, torch.Tensor]:
    torch.manual_seed(2)
    return {n: torch.randn_like(t) if t.is_floating_point() else t + 5 for n, t in model().state_dict().items()}


def test_a_file_and_a_folder_with_an_index(tmp_path: pathlib.Path) -> None:
    want = other()
    m = model()
    assert len(load_weights(m, write(tmp_path / "a.safetensors", want)).loaded) == len(want)
    assert all(torch.equal(t, want[n]) for n, t in m.state_dict().items())
    folder = tmp_path / "sharded"
    folder.mkdir()
    items = list(want.items())
    write(folder / "model-1.safetensors", dict(items[:3]))
    write(folder / "model-2.safetensors", dict(items[3:]))
    index = {n: "model-1.safetensors" if i < 3 else "model-2.safetensors" for i, (n, _) in enumerate(items)}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    m = model()
    load_weights(m, folder)
    assert all(torch.equal(t, want[n]) for n, t in m.state_dict().items())


def test_what_differs_is_told_both_ways_and_nothing_is_touched(tmp_path: pathlib.Path) -> None:
    want = {f"module.{n}": t for n, t in other().items()}
    want["module.extra"] = torch.zeros(1)
    del want["module.1.running_var"]
    file = write(tmp_path / "a.safetensors", want)
    m, before = model(), model().state_dict()
    with pytest.raises(WeightsError, match=r"missing: 1.running_var; unexpected: extra.*partial=True"):
        load_weights(m, file, rename=[("module.", "")])
    assert all(torch.equal(t, before[n]) for n, t in m.state_dict().items())
    report = load_weights(m, file, rename=[("module.", "")], partial=True)
    assert report.missing == ["1.running_var"] and report.unexpected == ["extra"]
    assert torch.equal(m.state_dict()["0.weight"], want["module.0.weight"])


def test_shapes_and_dtypes_are_strict(tmp_path: pathlib.Path) -> None:
    want = other() | {"0.bias": torch.zeros(5)}
    with pytest.raises(WeightsError, match=r"0.bias is \[5\] in the file, \[4\] in the model"):
        load_weights(model(), write(tmp_path / "a.safetensors", want), partial=True)
    want = other() | {"0.bias": torch.ones(4, dtype=torch.bfloat16)}
    file = write(tmp_path / "b.safetensors", want)
    with pytest.raises(WeightsError, match="bfloat16 in the file"):
        load_weights(model(), file)
    m = model()
    load_weights(m, file, cast=True)
    assert torch.equal(m.state_dict()["0.bias"], torch.ones(4))


def test_tied_parameters_are_stored_once(tmp_path: pathlib.Path) -> None:
    m = torch.nn.ModuleDict({"a": torch.nn.Linear(2, 2, bias=False), "b": torch.nn.Linear(2, 2, bias=False)})
    m["b"].weight = m["a"].weight
    file = write(tmp_path / "a.safetensors", {"b.weight": torch.ones(2, 2)})
    assert load_weights(m, file).loaded == ["b.weight"]
    assert torch.equal(m["a"].weight, torch.ones(2, 2))


HOSTILE = {
    "beyond the end": {"0.weight": {"dtype": "F32", "shape": [3, 4], "data_offsets": [0, 4800]}},
    "before the start": {"0.weight": {"dtype": "F32", "shape": [3, 4], "data_offsets": [-48, 0]}},
    "too few bytes": {"0.weight": {"dtype": "F32", "shape": [3, 4], "data_offsets": [0, 4]}},
    "negative dimensions": {"0.weight": {"dtype": "F32", "shape": [-3, -4], "data_offsets": [0, -48]}},
    "unknown dtype": {"0.weight": {"dtype": "X", "shape": [1], "data_offsets": [0, 4]}},
    "no shape": {"0.weight": {"dtype": "F32", "data_offsets": [0, 4]}},
}


@pytest.mark.parametrize("header", HOSTILE.values(), ids=HOSTILE.keys())
def test_headers_that_lie(tmp_path: pathlib.Path, header: dict) -> None:
    with pytest.raises(WeightsError):
        load_weights(model(), write(tmp_path / "a.safetensors", other(), header))


@pytest.mark.parametrize("content", [b"", b"\xff" * 20, struct.pack("<Q", 5) + b"nojso"])
def test_files_that_are_none(tmp_path: pathlib.Path, content: bytes) -> None:
    file = tmp_path / "a.safetensors"
    file.write_bytes(content)
    with pytest.raises(WeightsError, match="no safetensors file"):
        load_weights(model(), file)
    with pytest.raises(WeightsError, match="phalanx ckpt convert"):
        load_weights(model(), tmp_path / "nothing")


def test_an_index_cannot_leave_its_folder(tmp_path: pathlib.Path) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "../x"}}))
    with pytest.raises(WeightsError, match="outside"):
        load_weights(model(), tmp_path)
