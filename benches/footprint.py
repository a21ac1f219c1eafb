#!/usr/bin/env python3
"""Compares what a model is said to take in memory with the most that a server took for it.

For every model, context and number of replicas a server is started, its tables for grammars and for
scored prompts are brought in, and all contexts of all replicas are filled. What is measured is the
highest resident size (VmHWM) of that server less that of one which is about to open a model and has
none; what is said comes from the file's header alone. Exits with 1 when a ratio of the two is not
between 1.00 and 1.10. Linux only; the file systems of /tmp must support leases.
"""

import argparse
import fcntl
import http.client
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time

LEAST, MOST = 1.00, 1.10
MIB = 1 << 20
EMBEDDED = "models/sprout-10m-q1_0.gguf"
ANSWER_TOKENS = 4
SILENCE_LIMIT_S = 4 * 3600
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
}


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="+", help='GGUF files, or "embedded"')
    parser.add_argument("--contexts", type=int, nargs="+", default=[512, 2048, 8192])
    parser.add_argument("--replicas", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--toko", default="target/release/toko")
    parser.add_argument(
        "--footprint",
        default="target/release/examples/footprint",
        help="the program that says it: cargo build --release -p toko-engine --example footprint",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document a line")
    return parser.parse_args()


def highest_bytes(pid):
    with open(f"/proc/{pid}/status") as status:
        return int(re.search(r"VmHWM:\s+(\d+) kB", status.read())[1]) * 1024


def base_bytes(toko):
    """What a server takes that is about to open its model.

    The model is an empty file on which this process holds a lease: opening it waits.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGIO])
    with tempfile.NamedTemporaryFile(suffix=".gguf") as file:
        fcntl.fcntl(file.fileno(), fcntl.F_SETLEASE, fcntl.F_WRLCK)
        command = [toko, "serve", file.name, "--port", "0"]
        server = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        try:
            if signal.sigtimedwait([signal.SIGIO], 30) is None:
                sys.exit("the server opened no model within 30 s")
            return highest_bytes(server.pid)
        finally:
            server.kill()
            server.wait()


class Server:
    """A server of one model; gone when the block ends."""

    def __init__(self, toko, model, context, replicas):
        self.command = [toko, "serve", model, "--port", "0", "--ctx", str(context)]
        self.command += ["--replicas", str(replicas)]
        # What is computed stays, so that contexts which fill one after the other are full together.
        self.command += ["--prefix-cache-tokens", str(context * replicas)]

    def __enter__(self):
        self.process = subprocess.Popen(self.command, stderr=subprocess.PIPE, text=True)
        for line in self.process.stderr:
            if listening := re.search(r"listening on http://([\d.]+):(\d+)", line):
                self.address = listening[1], int(listening[2])
                threading.Thread(target=self.process.stderr.read, daemon=True).start()
                return self
        sys.exit(f"{' '.join(self.command)} did not start")

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait()

    def ask(self, path, **body):
        connection = http.client.HTTPConnection(*self.address, timeout=SILENCE_LIMIT_S)
        headers = {"Content-Type": "application/json"}
        connection.request("POST", path, json.dumps({"model": "default", **body}), headers)
        response = connection.getresponse()
        text = response.read()
        connection.close()
        if response.status != 200:
            sys.exit(f"{path}: {response.status} {text.decode()}")

    def ask_together(self, bodies):
        threads = [
            threading.Thread(target=self.ask, args=["/v1/completions"], kwargs=body)
            for body in bodies
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def fill(server, context, replicas, vocabulary):
    """Makes the server take all that it ever takes."""
    chance = random.Random(1)

    def prompt(tokens):
        # No two begin the same, or they would share pages. The last tokens steer many models.
        return [chance.randrange(vocabulary - 300) for _ in range(tokens)]

    messages = [{"role": "user", "content": "Who are you?"}]
    form = {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA}}
    server.ask("/v1/chat/completions", messages=messages, max_tokens=8, response_format=form)
    server.ask("/v1/completions", prompt=prompt(64), max_tokens=1, echo=True, logprobs=5)
    long = [
        {"prompt": prompt(context - ANSWER_TOKENS), "max_tokens": ANSWER_TOKENS}
        for _ in range(replicas)
    ]
    server.ask_together(long)
    # Short ones are all being answered at once, however slow the model is.
    short = [
        {"prompt": prompt(8), "max_tokens": 32, "logprobs": 5, "temperature": 1.0}
        for _ in range(replicas)
    ]
    server.ask_together(short)


def shown(toko, model):
    """The context that a model was trained for and the tokens of its vocabulary."""
    text = subprocess.run([toko, "show", model], capture_output=True, text=True, check=True).stdout
    context = re.search(r"context length\s+(\d+)", text)[1]
    return int(context), int(re.search(r"^  tokens\s+(\d+)$", text, re.MULTILINE)[1])


def said(args, model, context, replicas):
    file = EMBEDDED if model == "embedded" else model
    command = [args.footprint, file, str(context), str(replicas)]
    return json.loads(subprocess.run(command, capture_output=True, check=True).stdout)


def row_of(args, model, context, replicas, vocabulary):
    began = time.monotonic()
    footprint = said(args, model, context, replicas)
    terms = {}
    for term in footprint["terms"]:
        terms[term["kind"]] = terms.get(term["kind"], 0) + term["bytes"]
    base = base_bytes(args.toko)
    with Server(args.toko, model, context, replicas) as server:
        fill(server, context, replicas, vocabulary)
        measured = highest_bytes(server.process.pid) - base
    total = footprint["weights"] + footprint["overhead"]
    return {
        "model": "embedded" if model == "embedded" else os.path.basename(model),
        "context": context,
        "replicas": replicas,
        "terms_mib": {kind: round(size / MIB, 1) for kind, size in terms.items()},
        "said_mib": round(total / MIB, 1),
        "measured_mib": round(measured / MIB, 1),
        "base_mib": round(base / MIB, 1),
        "ratio": round(total / measured, 3),
        "seconds": round(time.monotonic() - began),
    }


def rows(args):
    for model in args.models:
        trained, vocabulary = shown(args.toko, model)
        for context in sorted({min(context, trained) for context in args.contexts}):
            for replicas in args.replicas:
                yield row_of(args, model, context, replicas, vocabulary)


KINDS = ["weights", "tokenizer", "runtime", "scratch", "logits", "kv_cache"]


def main():
    args = arguments()
    is_wrong = False
    if not args.json:
        print(f"| model | ctx | replicas | {' | '.join(KINDS)} | said, MiB | measured, MiB | ratio |")
        print("|---|--:|--:|" + "--:|" * (len(KINDS) + 3))
    for row in rows(args):
        is_wrong |= not LEAST <= row["ratio"] <= MOST
        if args.json:
            print(json.dumps(row), flush=True)
            continue
        terms = " | ".join(str(row["terms_mib"].get(kind, 0)) for kind in KINDS)
        print(
            f"| {row['model']} | {row['context']} | {row['replicas']} | {terms} "
            f"| {row['said_mib']} | {row['measured_mib']} | {row['ratio']:.3f} |",
            flush=True,
        )
    sys.exit(is_wrong)


if __name__ == "__main__":
    main()
