#!/usr/bin/env python3
"""Writes a GGUF file with random 1-bit weights in the shape of a published Qwen3 model.

Such a model takes the memory and the time of the real one and says nothing. Its vocabulary is as
large as the real one's and is built by as many merges; the same arguments always give the same file.
"""

import argparse
import random
import struct

SHAPES = {
    "0.6b": dict(layers=28, hidden=1024, feed_forward=3072, heads=16, kv_heads=8),
    "1.7b": dict(layers=28, hidden=2048, feed_forward=6144, heads=16, kv_heads=8),
    "4b": dict(layers=36, hidden=2560, feed_forward=9728, heads=32, kv_heads=8),
}
HEAD = 128
CONTEXT = 32768
VOCABULARY = 151936
CONTROL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TEMPLATE = """{%- for m in messages -%}<|im_start|>{{ m.role }}
{{ m.content }}<|im_end|>
{% endfor -%}{%- if add_generation_prompt -%}<|im_start|>assistant
{% endif -%}"""

F32, Q1_0 = 0, 41
BLOCK, BLOCK_BYTES = 128, 18
ALIGNMENT = 32


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("shape", choices=sorted(SHAPES))
    parser.add_argument("file", help="the file to write")
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


def letters():
    """The letters that stand for the 256 bytes in byte-level vocabularies."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return [chr(code) for code in printable] + [chr(0x100 + i) for i in range(len(others))]


def vocabulary(seed):
    """Tokens, their kinds and the merges: each merge of an earlier token and a letter makes a new one."""
    chance = random.Random(seed)
    tokens = letters()
    # As in real vocabularies nearly all tokens are text: those of ASCII come first.
    ascii_letters, words = tokens[:94], tokens[:94]
    known, merges = set(tokens), []
    while len(tokens) + len(CONTROL) < VOCABULARY:
        left, right = chance.choice(words), chance.choice(ascii_letters)
        # As in real vocabularies few tokens are longer than a word.
        if len(left) < 14 and left + right not in known:
            known.add(left + right)
            tokens.append(left + right)
            words.append(left + right)
            merges.append(f"{left} {right}")
    kinds = [1] * len(tokens) + [3] * len(CONTROL)
    return tokens + CONTROL, kinds, merges


def text(value):
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def pair(key, value):
    """One pair of metadata; integers are u32, and lists hold texts or i32."""
    if isinstance(value, bool):
        kind, data = 7, struct.pack("<B", value)
    elif isinstance(value, int):
        kind, data = 4, struct.pack("<I", value)
    elif isinstance(value, float):
        kind, data = 6, struct.pack("<f", value)
    elif isinstance(value, str):
        kind, data = 8, text(value)
    elif isinstance(value[0], str):
        kind, data = 9, struct.pack("<IQ", 8, len(value)) + b"".join(map(text, value))
    else:
        kind, data = 9, struct.pack(f"<IQ{len(value)}i", 5, len(value), *value)
    return text(key) + struct.pack("<I", kind) + data


def metadata(shape, name, seed):
    tokens, kinds, merges = vocabulary(seed)
    first_control = len(tokens) - len(CONTROL)
    return {
        "general.architecture": "qwen3",
        "general.name": f"random {name}",
        "qwen3.block_count": shape["layers"],
        "qwen3.context_length": CONTEXT,
        "qwen3.embedding_length": shape["hidden"],
        "qwen3.feed_forward_length": shape["feed_forward"],
        "qwen3.attention.head_count": shape["heads"],
        "qwen3.attention.head_count_kv": shape["kv_heads"],
        "qwen3.attention.key_length": HEAD,
        "qwen3.attention.value_length": HEAD,
        "qwen3.attention.layer_norm_rms_epsilon": 1e-6,
        "qwen3.rope.freq_base": 1e6,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "qwen2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.bos_token_id": first_control,
        "tokenizer.ggml.eos_token_id": first_control + 2,
        "tokenizer.ggml.padding_token_id": first_control,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": TEMPLATE,
    }


def tensors(shape):
    """Names, extents (the row's length first) and types in the order of the file."""
    hidden, wide = shape["hidden"], shape["feed_forward"]
    queries, keys = shape["heads"] * HEAD, shape["kv_heads"] * HEAD
    yield "token_embd.weight", [hidden, VOCABULARY], Q1_0
    for layer in range(shape["layers"]):
        for part, extents in [
            ("attn_norm", [hidden]),
            ("attn_q", [hidden, queries]),
            ("attn_k", [hidden, keys]),
            ("attn_v", [hidden, keys]),
            ("attn_q_norm", [HEAD]),
            ("attn_k_norm", [HEAD]),
            ("attn_output", [queries, hidden]),
            ("ffn_norm", [hidden]),
            ("ffn_gate", [hidden, wide]),
            ("ffn_up", [hidden, wide]),
            ("ffn_down", [wide, hidden]),
        ]:
            kind = Q1_0 if len(extents) == 2 else F32
            yield f"blk.{layer}.{part}.weight", extents, kind
    yield "output_norm.weight", [hidden], F32


def bytes_of(extents, kind):
    if kind == F32:
        return 4 * extents[0]
    return extents[0] // BLOCK * BLOCK_BYTES * extents[1]


def data_of(extents, kind, chance):
    """Norms are ones; a matrix leaves the length of a vector about as it was."""
    if kind == F32:
        return struct.pack("<f", 1.0) * extents[0]
    data = bytearray(chance.randbytes(bytes_of(extents, kind)))
    scale = struct.pack("<e", extents[0] ** -0.5)
    blocks = len(data) // BLOCK_BYTES
    data[0::BLOCK_BYTES], data[1::BLOCK_BYTES] = scale[:1] * blocks, scale[1:] * blocks
    return bytes(data)


def aligned(number):
    return -number % ALIGNMENT + number


def main():
    args = arguments()
    shape = SHAPES[args.shape]
    pairs = metadata(shape, args.shape, args.seed)
    directory, offset = b"", 0
    for name, extents, kind in tensors(shape):
        directory += text(name) + struct.pack(f"<I{len(extents)}QIQ", len(extents), *extents, kind, offset)
        offset += aligned(bytes_of(extents, kind))
    header = b"GGUF" + struct.pack("<IQQ", 3, len(list(tensors(shape))), len(pairs))
    header += b"".join(pair(key, value) for key, value in pairs.items()) + directory
    chance = random.Random(args.seed)
    with open(args.file, "wb") as file:
        file.write(header.ljust(aligned(len(header)), b"\0"))
        for _, extents, kind in tensors(shape):
            data = data_of(extents, kind, chance)
            file.write(data.ljust(aligned(len(data)), b"\0"))


if __name__ == "__main__":
    main()
