# SPDX-License-Identifier: Apache-2.0
"""Python values as bytes, without pickle: what a schedule, a loss scaler or a user's object keeps between steps.

Values are None, bool, int, float, str, bytes, list, tuple, set, dict with keys of these, and tensors on any device. Floats
keep their bits. Reading never executes anything: an unknown type is an error that names where it lies.
"""

from __future__ import annotations

import base64
import json
from collections import OrderedDict, defaultdict
from typing import Any

import torch

from .dtypes import NAMES, TORCH

LENGTH = 8  # bytes of the length in front of the text


class CodecError(TypeError):
    """A value of the training state cannot be written as bytes; the message names its place."""


def encode(value: Any) -> bytes:
    """The bytes of a value; equal values, dicts in equal order, give equal bytes."""
    return json.dumps(_pack(value, ""), separators=(",", ":"), allow_nan=False).encode()


def decode(data: bytes) -> Any:
    """The value that `encode` was given."""
    return _unpack(json.loads(data))


def write(buffer: torch.Tensor, value: Any) -> None:
    """Puts a value into a tensor of bytes, zeros behind it. CodecError: it does not fit."""
    data = encode(value)
    if LENGTH + len(data) > buffer.numel():
        raise CodecError(
            f"the state of schedule, scaler and objects needs {LENGTH + len(data)} bytes, {buffer.numel()} were "
            f"registered; give Elastic(..., extra_bytes={2 * (LENGTH + len(data))})"
        )
    raw = len(data).to_bytes(LENGTH, "little") + data
    buffer[: len(raw)] = torch.frombuffer(bytearray(raw), dtype=torch.uint8)
    buffer[len(raw) :] = 0


def read(buffer: torch.Tensor) -> Any:
    """The value in a tensor of bytes."""
    size = int.from_bytes(bytes(buffer[:LENGTH].tolist()), "little")
    if size > buffer.numel() - LENGTH:
        raise CodecError(f"{size} bytes of state in a tensor of {buffer.numel()}")
    return decode(bytes(buffer[LENGTH : LENGTH + size].tolist()))


def _pack(value: Any, place: str) -> Any:
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, int):
        return value if -(2**53) < value < 2**53 else {"int": str(value)}
    if isinstance(value, float):
        return {"f": value.hex()}
    if isinstance(value, (bytes, bytearray)):
        return {"bytes": base64.b64encode(bytes(value)).decode()}
    if isinstance(value, torch.Tensor):
        return _pack_tensor(value, place)
    if isinstance(value, list):
        return [_pack(v, f"{place}[{i}]") for i, v in enumerate(value)]
    for kind in (tuple, set, frozenset):
        if type(value) is kind:
            items = list(value) if kind is tuple else sorted(value, key=repr)
            return {kind.__name__: [_pack(v, f"{place}[{i}]") for i, v in enumerate(items)]}
    if type(value) in (dict, OrderedDict, defaultdict) or type(value).__name__ == "Counter":
        return {"dict": [[_pack(k, place), _pack(v, f"{place}[{k!r}]")] for k, v in value.items()]}
    if hasattr(value, "item") and getattr(value, "shape", None) == ():  # a number of numpy
        return _pack(value.item(), place)
    raise CodecError(
        f"{place or 'the value'} is a {type(value).__module__}.{type(value).__qualname__}, which is not kept: "
        "give numbers, strings, bytes, lists, tuples, sets, dicts or tensors"
    )


def _pack_tensor(value: torch.Tensor, place: str) -> Any:
    if value.dtype not in NAMES:
        raise CodecError(f"{place or 'the value'} is a tensor of {value.dtype}, which is not kept")
    plain = value.detach().to("cpu").contiguous()
    raw = bytes(plain.reshape(-1).view(torch.uint8).tolist()) if plain.numel() else b""
    return {
        "tensor": base64.b64encode(raw).decode(),
        "dtype": NAMES[value.dtype],
        "shape": list(value.shape),
    }


def _unpack(value: Any) -> Any:
    if isinstance(value, list):
        return [_unpack(v) for v in value]
    if not isinstance(value, dict):
        return value
    if "tensor" in value:
        raw = bytearray(base64.b64decode(value["tensor"]))
        dtype = TORCH[value["dtype"]]
        if not raw:
            return torch.empty(value["shape"], dtype=dtype)
        return torch.frombuffer(raw, dtype=dtype).reshape(value["shape"]).clone()
    ((kind, content),) = value.items()
    if kind == "dict":
        return {_unpack(k): _unpack(v) for k, v in content}
    if kind == "f":
        return float.fromhex(content)
    if kind == "int":
        return int(content)
    if kind == "bytes":
        return base64.b64decode(content)
    sequences = {"tuple": tuple, "set": set, "frozenset": frozenset}
    return sequences[kind](_unpack(v) for v in content)
