"""Writes vectors.json: blocks of every format and their weights by the PyPI package `gguf`, and
floats with their nearest halves by numpy and `gguf`.

Usage: pip install gguf numpy && python vectors.py > vectors.json
Formats the package does not decode (Q1_0, Q2_0, groups of 128) are decoded here with numpy.
"""
import json
import numpy as np
from gguf import quants, GGMLQuantizationType as T

# name: block bytes, offsets of halves
FORMATS = {
    "F16": (2, [0]), "BF16": (2, []), "Q1_0": (18, [0]), "Q2_0": (18, [0]), "Q2_0_G128": (34, [0]),
    "TQ2_0_G128": (34, [32]), "TQ1_0": (54, [52]), "TQ2_0": (66, [64]), "Q4_0": (18, [0]),
    "Q4_1": (20, [0, 2]), "Q5_0": (22, [0]), "Q5_1": (24, [0, 2]), "Q8_0": (34, [0]),
    "Q2_K": (84, [80, 82]), "Q3_K": (110, [108]), "Q4_K": (144, [0, 2]), "Q5_K": (176, [0, 2]),
    "Q6_K": (210, [208]),
}
SCALES = np.array([0.0123, -1.75, 65504, 6e-8, 0], np.float16)


def pairs(codes, values):
    codes = codes[..., None] >> np.array([0, 2, 4, 6], np.uint8) & 3
    return np.array(values, np.float32)[codes].reshape(len(codes), -1)


def decode(name, blocks):
    if name == "F16":
        return blocks.view(np.float16).astype(np.float32)
    head = blocks[:, :2].copy().view(np.float16).astype(np.float32)
    tail = blocks[:, -2:].copy().view(np.float16).astype(np.float32)
    if name == "Q1_0":
        bits = np.unpackbits(blocks[:, 2:], axis=-1, bitorder="little")
        return head * (2 * bits.astype(np.float32) - 1)
    if name in ("Q2_0", "Q2_0_G128"):
        return head * pairs(blocks[:, 2:], [-1, 0, 1, 2])
    if name == "TQ2_0_G128":
        return tail * pairs(blocks[:, :-2], [-1, 0, 1, 0])
    return quants.dequantize(blocks.reshape(-1), T[name])


out = {}
rng = np.random.default_rng(1)
for name, (size, halves) in FORMATS.items():
    count = 5 if size > 2 else 40
    blocks = rng.integers(0, 256, (count, size), dtype=np.uint8)
    if name == "BF16":
        blocks[:, 1] &= 0xBF  # no infinities, no NaN
    for field, at in enumerate(halves):
        for i in range(count):
            blocks[i, at:at + 2] = SCALES[(i + field) % 5:][:1].view(np.uint8)
    with np.errstate(over="ignore"):
        weights = decode(name, blocks).astype("<f4")
    out[name] = {"bytes": blocks.tobytes().hex(), "weights": weights.tobytes().hex()}

# Ties, neighbours of ties, subnormal halves, overflow, infinity, zeros.
floats = np.array([1 + 2**-11, 1 + 3 * 2**-11, 1 + 2**-11 + 2**-20, 2**-24, 2**-25, 3 * 2**-26, 6.1e-5,
                   65504, 65519.996, 65520, 1e30, 3.4028235e38, np.inf, 1e-40, 0.0, 1 / 3, 1 + 2**-8,
                   1 + 3 * 2**-8], np.float32)
floats = np.concatenate([floats, -floats, rng.normal(0, 1, 92).astype(np.float32)])
with np.errstate(over="ignore"):
    halves = {"F16": floats.astype(np.float16), "BF16": quants.quantize(floats, T.BF16)}
out["floats"] = {"F32": floats.tobytes().hex()} | {k: v.tobytes().hex() for k, v in halves.items()}
print(json.dumps(out, indent=0))
