# SPDX-License-Identifier: Apache-2.0
"""Starting from somebody's weights: safetensors files into a model, with a report before anything is touched."""

from __future__ import annotations

import json
import mmap
import os
import pathlib
from collections.abc import Iterable
from dataclasses import dataclass, field

import torch

from .state import box_of, local

_DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "I64": torch.int64,
    "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2,
}
_HEADER_MAX = 100 << 20


class WeightsError(ValueError):
    """The file is no safetensors file, or its tensors and the model's differ; nothing was loaded."""


@dataclass
class Report:
    """How the tensors of files and model fit: names of the model, except `unexpected`."""

    loaded: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    unexpected: list[str] = field(default_factory=list)
    shapes: list[str] = field(default_factory=list)
    dtypes: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        said = [f"{len(self.loaded)} tensors fit"]
        for what in ("missing", "unexpected", "shapes", "dtypes"):
            names = getattr(self, what)
            if names:
                more = f" and {len(names) - 5} more" if len(names) > 5 else ""
                said.append(f"{what}: {', '.join(names[:5])}{more}")
        return "; ".join(said)


def load_weights(
    model: torch.nn.Module,
    path: str | os.PathLike[str],
    *,
    rename: Iterable[tuple[str, str]] = (),
    partial: bool = False,
    cast: bool = False,
) -> Report:
    """Loads safetensors into a model: a file, a folder of them, or a folder with `model.safetensors.index.json`.

    Call it on all ranks, before `Elastic`. A sharded model takes its part of each tensor.

    Args:
        rename: pairs (prefix in the file, prefix in the model), applied in order, for instance `("module.", "")`.
        partial: load what fits, although tensors are missing or unexpected. Shapes must fit always.
        cast: convert where dtypes differ.
    Raises WeightsError, with what differs in both directions; the model is as it was.
    """
    found = _read(pathlib.Path(path))
    named: dict[str, _Piece] = {}
    for name, piece in found.items():
        for old, new in rename:
            if name.startswith(old):
                name = new + name[len(old) :]
        if name in named:
            raise WeightsError(f"two tensors of {path} are called {name} after renaming")
        named[name] = piece
    report = Report()
    targets = model.state_dict(keep_vars=True)
    seen: set[int] = set()
    for name, tensor in targets.items():
        if name not in named:
            if id(tensor) not in seen:  # a tied parameter is stored once
                report.missing.append(name)
            continue
        seen.add(id(tensor))
        piece = named[name]
        if tuple(tensor.shape) != piece.shape:
            report.shapes.append(f"{name} is {list(piece.shape)} in the file, {list(tensor.shape)} in the model")
        elif tensor.dtype != piece.dtype and not cast:
            report.dtypes.append(f"{name} is {piece.dtype} in the file, {tensor.dtype} in the model")
        else:
            report.loaded.append(name)
    report.missing = [n for n in report.missing if id(targets[n]) not in seen]
    report.unexpected = [n for n in named if n not in targets]
    if report.shapes or report.dtypes or not partial and (report.missing or report.unexpected):
        hint = "" if partial else "; give partial=True to load what fits, rename= to change names, cast=True to convert"
        raise WeightsError(f"{path}: {report}{hint}")
    if not report.loaded:
        raise WeightsError(f"{path}: no tensor has a name of the model: {report}")
    with torch.no_grad():
        for name in report.loaded:
            _fill(targets[name], named[name])
    return report


@dataclass
class _Piece:
    file: pathlib.Path
    begin: int
    end: int
    dtype: torch.dtype
    shape: tuple[int, ...]

    def tensor(self) -> torch.Tensor:
        if self.begin == self.end:
            return torch.empty(self.shape, dtype=self.dtype)
        with open(self.file, "rb") as f:
            mapped = mmap.mmap(f.fileno(), 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
        count = (self.end - self.begin) // self.dtype.itemsize
        return torch.frombuffer(mapped, dtype=self.dtype, count=count, offset=self.begin).reshape(self.shape)


def _fill(target: torch.Tensor, piece: _Piece) -> None:
    whole, here = piece.tensor(), local(target)
    box = box_of(target)
    if box is not None:
        for dim, (first, size) in enumerate(zip(box[1], here.shape, strict=True)):
            whole = whole.narrow(dim, first, size)
    here.copy_(whole)


def _read(path: pathlib.Path) -> dict[str, _Piece]:
    if path.is_file():
        return _header(path)
    index = path / "model.safetensors.index.json"
    if index.is_file():
        try:
            files = sorted(set(json.loads(index.read_text())["weight_map"].values()))
        except (ValueError, KeyError, TypeError, AttributeError) as e:
            raise WeightsError(f"{index} has no weight_map of names and files") from e
        if any(pathlib.PurePath(f).name != f for f in files):
            raise WeightsError(f"{index} names files outside of its folder")
        paths = [path / f for f in files]
    else:
        paths = sorted(path.glob("*.safetensors"))
    if not paths:
        raise WeightsError(f"{path} has no safetensors; `phalanx ckpt convert {path} DIR --to safetensors` makes some of other formats")
    found: dict[str, _Piece] = {}
    for file in paths:
        for name, piece in _header(file).items():
            if name in found:
                raise WeightsError(f"{name} is in {found[name].file} and in {file}")
            found[name] = piece
    return found


def _header(file: pathlib.Path) -> dict[str, _Piece]:
    try:
        size = file.stat().st_size
        with open(file, "rb") as f:
            length = int.from_bytes(f.read(8), "little")
            if size < 8 or length > min(size - 8, _HEADER_MAX):
                raise WeightsError(f"{file} is no safetensors file: a header of {length} bytes in {size}")
            header = json.loads(f.read(length))
    except FileNotFoundError as e:
        raise WeightsError(f"{file} is missing") from e
    except ValueError as e:
        if isinstance(e, WeightsError):
            raise
        raise WeightsError(f"{file} is no safetensors file: its header is no JSON") from e
    found = {}
    for name, told in header.items() if isinstance(header, dict) else ():
        if name == "__metadata__":
            continue
        try:
            dtype, shape = _DTYPES[told["dtype"]], tuple(told["shape"])
            begin, end = (8 + length + x for x in told["data_offsets"])
        except (KeyError, TypeError, ValueError) as e:
            raise WeightsError(f"{file}: the entry of {name} is not understood: {told}") from e
        count = 1
        for d in shape:
            count *= d
        if not (8 + length <= begin <= end <= size) or end - begin != count * dtype.itemsize or count < 0:
            raise WeightsError(f"{file}: {name} is said to lie at bytes {begin} to {end} of {size} with {count} elements of {told['dtype']}")
        found[name] = _Piece(file, begin, end, dtype, shape)
    return found
