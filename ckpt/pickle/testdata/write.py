# SPDX-License-Identifier: Apache-2.0
"""Writes the pickles in this folder: one value by every protocol. decode_test.go says what it is."""

import collections
import datetime
import pickle

shared = ["shared"]
value = {
    "none": None,
    "bools": [True, False],
    "ints": [0, 1, 255, 256, 65535, 65536, -1, -128, 2**31 - 1, -(2**31), 2**31, 2**63 - 1, -(2**63)],
    "big": [2**63, -(2**63) - 1, 2**200, -(2**200)],
    "floats": [0.0, -0.0, 1.5, 1e-300, float("inf"), float("-inf")],
    "strings": ["", "a", "ü€🙂", "line\nquote'\"\\ \\u0041", "x" * 300, "y" * 70000],
    "bytes": [b"", b"\x00\xff", b"z" * 300],
    "tuples": [(), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4)],
    "shared": [shared, shared],
    "ordered": collections.OrderedDict(a=1, b=2),
    "set": {1},
    "frozenset": frozenset([2]),
    "array": bytearray(b"array"),
    "foreign": datetime.date(2020, 1, 2),
    5: {(1, "key"): "by tuple"},
}
for protocol in range(6):
    with open(f"protocol{protocol}.pickle", "wb") as f:
        pickle.dump(value, f, protocol)
