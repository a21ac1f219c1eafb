#!/usr/bin/env python3
"""Counts the instructions of a decode step by what they do.

Runs `toko run` twice under valgrind's callgrind, for 1 token and for many, and tells the difference by part, so that
loading and the prompt drop out. On one thread and with a seed the counts are the same each time, on whatever else the
machine does. valgrind knows no AVX-512, so the kernels are those of AVX2 unless --kernel names others. A build with line
tables tells more of what was inlined:

    CARGO_PROFILE_RELEASE_DEBUG=line-tables-only cargo build --release
    benches/callgrind.py target/release/toko
"""

import argparse
import collections
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile

# The first that occurs in the place of an instruction names its part.
PARTS = [
    ("attention", ("kernels/src/attention", "kernels/src/softmax", "kernels/src/rope", "kernels/src/exp", "model/src/attention", "model/src/kv")),
    ("norms and sums", ("kernels/src/norm", "kernels/src/swiglu")),
    ("quantizing", ("kernels/src/quantized",)),
    ("pool", ("kernels/src/pool",)),
    ("matrices", ("kernels/src/formats", "kernels/src/matmul", "kernels/src/kernel")),
    ("sampling", ("core/src/slice/sort", "engine/src/sampler", "engine/src/ranking", "kernels/src/blocks", "engine/src/logprobs")),
    ("model", ("model/src/",)),
    ("engine", ("engine/src/",)),
    ("text", ("tokenizer/src/",)),
]


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("toko", help="the program")
    parser.add_argument("model", nargs="?", default="embedded")
    parser.add_argument("--tokens", type=int, default=33, help="decode steps are one less")
    parser.add_argument("--kernel", default="avx2")
    parser.add_argument("--prompt", default="Tell me a story about a fox named Pip.")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--functions", type=int, default=12, help="how many to list")
    return parser.parse_args()


def profile(options, tokens, folder):
    """Returns instructions by (function, file), where the file is that of the code, inlined or not."""
    out = os.path.join(folder, f"{tokens}.out")
    command = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={out}", options.toko, "run", "--verbose", options.model,
               options.prompt, "--threads", "1", "--kernel", options.kernel, "--seed", "1", "--max-tokens", str(tokens)]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    answered = re.search(r"answer +(\d+) tokens", done.stderr)
    if done.returncode != 0 or not os.path.exists(out) or not answered:
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        sys.exit(f"callgrind.py: the run failed with {done.returncode}: {last}")
    if int(answered[1]) != tokens:
        sys.exit(f"callgrind.py: the answer ended after {answered[1]} tokens of {tokens}; --prompt or --tokens helps")
    with open(out) as lines:
        return read(lines)


def read(lines):
    """Reads callgrind's format: positions name what follows, costs below `calls=` are of somebody else."""
    names = {}
    counts = collections.Counter()
    function = file = own = ""
    is_call = False

    def named(kind, text):
        number, name = re.match(r"\((\d+)\) ?(.*)", text).groups()
        if name:
            names[kind, number] = name
        return names[kind, number]

    for line in lines:
        line = line.strip()
        key, _, text = line.partition("=")
        if key in ("fl", "fi", "fe"):
            file = named("file", text)
            own = file if key == "fl" else own
        elif key == "fn":
            function = named("function", text)
        elif key in ("cfn", "cfi", "cfl", "cob", "ob"):
            named({"cfn": "function", "cob": "object", "ob": "object"}.get(key, "file"), text)
        elif key == "calls":
            is_call = True
        elif line and line[0] in "0123456789+-*":
            if not is_call:
                counts[function, file, own] += int(line.split()[1])
            is_call = False
    return counts


def part(function, file, own):
    # What is inlined from elsewhere, such as an intrinsic, belongs to the function around it.
    for place in (file, own, function.replace("toko_", "").replace("::", "/src/", 1).replace("::", "/")):
        for name, places in PARTS:
            if any(known in place for known in places):
                return name
    return "other"


def main():
    options = arguments()
    if not shutil.which("valgrind"):
        sys.exit("callgrind.py: valgrind is not installed; on Debian: apt-get install valgrind")
    with tempfile.TemporaryDirectory() as folder:
        one = profile(options, 1, folder)
        many = profile(options, options.tokens, folder)
    steps = options.tokens - 1
    many.subtract(one)
    parts, functions = collections.Counter(), collections.Counter()
    for place, count in many.items():
        parts[part(*place)] += count
        functions[part(*place), place[0]] += count
    total = sum(parts.values())
    if options.json:
        print(json.dumps({"instructions_per_token": total // steps, "parts": {name: count // steps for name, count in parts.items()}}))
        return
    print(f"{total / steps:,.0f} instructions a token, {options.kernel}, 1 thread, {steps} steps")
    for name, count in parts.most_common():
        print(f"  {name:<16} {count / steps:>14,.0f}  {100 * count / total:5.1f} %")
    print("functions")
    for (name, function), count in functions.most_common(options.functions):
        print(f"  {100 * count / total:5.1f} %  {name:<16} {function[:100]}")


if __name__ == "__main__":
    main()
