# SPDX-License-Identifier: Apache-2.0
"""Writes d1.json: the digest D1 straight from the formulas of doc.go, apart from all Go code.

    python3 d1.py > d1.json
"""

import json

M64 = (1 << 64) - 1
P = (1 << 61) - 1


def mix(z):
    z ^= z >> 30
    z = z * 0xBF58476D1CE4E5B9 & M64
    z ^= z >> 27
    z = z * 0x94D049BB133111EB & M64
    return z ^ z >> 31


def leaves(seed, data):
    for start in range(0, len(data), 65536):
        leaf = data[start : start + 65536]
        leaf += bytes(-len(leaf) % 4)
        sums = [0, 0]
        for n in range(len(leaf) // 4):
            w = int.from_bytes(leaf[4 * n : 4 * n + 4], "little")
            if not w:
                continue
            j, t, i = n // 1024, n // 4 % 256, n % 4
            for q in range(2):
                key = mix(4 * j + i + 64 * q + 1) & 0xFFFFFFFF | 1
                lane = mix(seed ^ mix(256 + t + 256 * q)) | 1
                sums[q] = (sums[q] + lane * key * w) & M64
        yield sums


def root(seed, digests):
    r = 1 + mix((seed + 7) & M64) % (P - 1)
    out = [0, 0]
    for n, pair in enumerate(digests):
        for q, l in enumerate(pair):
            high, low = l >> 32, l & 0xFFFFFFFF
            out[q] = (out[q] + high * pow(r, 2 * n, P) + low * pow(r, 2 * n + 1, P)) % P
    return "%016x%016x" % tuple(out)


def full_name(tensor):
    return tensor["name"] * tensor["repeat_name"]


def content(tensor):
    if tensor["generator"] == "zero":
        return bytes(tensor["size_bytes"])
    words = (tensor["size_bytes"] + 7) // 8
    stream = b"".join(mix(tensor["start"] + i & M64).to_bytes(8, "little") for i in range(words))
    return stream[: tensor["size_bytes"]]


def tensor_leaves(seed, tensor):
    dims = ",".join(str(n) for n in tensor["shape"])
    head = b"".join(s.encode() + b"\0" for s in (full_name(tensor), tensor["dtype"], dims))
    return list(leaves(seed, head)) + list(leaves(seed, content(tensor)))


def tensor(name, dtype, shape, size, generator="mix", start=1, repeat=1):
    return {"name": name, "repeat_name": repeat, "dtype": dtype, "shape": shape, "size_bytes": size, "generator": generator, "start": start}


CASES = [
    (0, []),
    (0, [tensor("w", "float32", [], 4)]),
    (0, [tensor("w", "float32", [0, 7], 0)]),
    (0, [tensor("w", "uint8", [3], 3)]),
    (1, [tensor("layers.0.weight", "float32", [128, 128], 65536)]),
    (M64, [tensor("layers.0.weight", "float32", [16385], 65540, start=M64)]),
    (2**63 + 5, [tensor("zeros", "bfloat16", [40000], 80000, "zero")]),
    (7, [tensor("unaligned", "uint8", [65535 + 4097], 65535 + 4097, start=99)]),
    (42, [tensor("long.", "int64", [2], 16, repeat=14000)]),
    (
        3,
        [
            tensor("b", "float32", [20000], 80000, start=10),
            tensor("a", "float32", [5, 5], 100, start=20),
            tensor("B", "bfloat16", [70001], 140002, start=30),
            tensor("é", "uint8", [1], 1, start=40),
        ],
    ),
]


def main():
    vectors = []
    for seed, tensors in CASES:
        digests = [tensor_leaves(seed, t) for t in tensors]
        order = sorted(range(len(tensors)), key=lambda n: full_name(tensors[n]).encode())
        vectors.append(
            {
                "seed": seed,
                "tensors": [
                    t | {"root": root(seed, d), "leaves": len(d)} for t, d in zip(tensors, digests)
                ],
                "digest": root(seed, [l for n in order for l in digests[n]]),
            }
        )
    votes = [{"job_seed": s, "step": n, "seed": mix(s ^ mix(n))} for s, n in [(0, 0), (0, 1), (1, 1), (M64, 12345678901)]]
    print(json.dumps({"vectors": vectors, "vote_seeds": votes}, indent=1, ensure_ascii=True))


if __name__ == "__main__":
    main()
