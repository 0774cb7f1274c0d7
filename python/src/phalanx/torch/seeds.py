# SPDX-License-Identifier: Apache-2.0
"""Random streams that depend on the seed, the step and the slot, and on nothing else.

Whoever computes a slot draws the same numbers, so dropout and augmentation do not depend on which rank that is, how often a
step was repeated, or what the process did before. Hence no generator's state needs to be kept or healed.
"""

from __future__ import annotations

import random
import sys

import torch

_MASK = (1 << 64) - 1


_GOLDEN = 0x9E3779B97F4A7C15


def mix(x: int) -> int:
    """The finalizer of splitmix64: one 64-bit number from another."""
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)


def stream(seed: int, *place: int) -> int:
    """The key of a stream: 63 bits from a seed and any numbers."""
    key = mix((seed + _GOLDEN) & _MASK)
    for number in place:
        key = mix(((key ^ (number & _MASK)) + _GOLDEN) & _MASK)
    return key >> 1


def computing(seed: int, step: int, slot: int, part: int, batch: int) -> int:
    """The stream of forward and backward of a batch: the `batch`-th of a rank's part of a slot."""
    return stream(seed, 1, step, slot, part, batch)


def reading(seed: int, step: int, slot: int, part: int, first: int) -> int:
    """The stream of reading the batch that begins with the `first` sample of a rank's part of a slot."""
    return stream(seed, 2, step, slot, part, first)


def applying(seed: int, step: int) -> int:
    """The stream of the optimizer and what follows it."""
    return stream(seed, 3, step)


def seed_all(key: int) -> None:
    """Seeds the default generators of Python, torch (the CPU's and those of GPUs in use) and, where it is loaded, numpy."""
    random.seed(key)
    torch.default_generator.manual_seed(key)
    if torch.cuda.is_initialized():  # torch.manual_seed would note a stack for later, which takes a millisecond
        torch.cuda.manual_seed_all(key)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(key & 0xFFFFFFFF)
