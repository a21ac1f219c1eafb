#!/usr/bin/env python3
"""Tells whether requests to a loaded model wait while another model is loaded, refused or unloaded.

The server runs already and serves both. Block by block the first model gets the same small requests, one
after the other: in one block nothing else happens, in another a program that has nothing to do with the
server keeps a core busy, in a third the second model is loaded and unloaded without a pause; who is first
changes with the round. A load works on the same cores as the answers, so what it costs is to be compared
with the busy core. A load that is refused counts, too: a server whose limit has no room for the second
model shows what refusals cost. What is told are the times of whole answers.
"""

import argparse
import contextlib
import http.client
import json
import math
import subprocess
import sys
import threading
import time
import urllib.parse

import stream


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("resident", help="the model that is asked")
    parser.add_argument("other", help="the model that comes and goes")
    parser.add_argument("--url", default="http://127.0.0.1:11435")
    parser.add_argument("--requests", type=int, default=200, help="in each block")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--prompt-tokens", type=int, default=16, help="about so many")
    parser.add_argument("--max-tokens", type=int, default=4)
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    return parser.parse_args()


class Loads:
    """Loads and unloads a model until it is told to stop."""

    def __init__(self, args):
        self.address = urllib.parse.urlsplit(args.url)
        self.model = args.other
        self.counts = {"loaded": 0, "refused": 0}
        self.load_s = []
        self.fault = None

    def manage(self, action):
        connection = http.client.HTTPConnection(
            self.address.hostname, self.address.port, timeout=stream.SILENCE_LIMIT_S
        )
        try:
            headers = {"Content-Type": "application/json"}
            connection.request("POST", f"/models/{action}", json.dumps({"model": self.model}), headers)
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    def run(self, stop):
        while not stop.is_set() and not self.fault:
            began = time.monotonic()
            status, body = self.manage("load")
            if status == 200:
                self.load_s.append(time.monotonic() - began)
                self.counts["loaded"] += 1
                status, body = self.manage("unload")
            elif b'"decision"' in body:
                self.counts["refused"] += 1
                continue
            if status != 200:
                self.fault = f"status {status}: {body[:200].decode(errors='replace')}"


def block(args, client, seed):
    """The times of the answers to a block of requests."""
    times = []
    for number in range(args.requests):
        answer = client.ask(stream.prompt_of(args.prompt_tokens, f"{seed} {number}"), args.max_tokens)
        if answer.status != 200 or answer.fault:
            sys.exit(answer.fault or f"status {answer.status}")
        times.append(time.monotonic() - answer.sent)
    return times


@contextlib.contextmanager
def busy_core():
    """Keeps a core busy."""
    program = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        program.kill()
        program.wait()


@contextlib.contextmanager
def running(loads):
    """Loads and unloads all the while."""
    stop = threading.Event()
    thread = threading.Thread(target=loads.run, args=[stop])
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def measure(args):
    """Returns the times of each kind of block, and what the loads came to."""
    client, loads = stream.Client(args.url, args.resident, None), Loads(args)
    kinds = {
        "alone": contextlib.nullcontext,
        "beside a busy core": busy_core,
        "beside loads": lambda: running(loads),
    }
    times = {kind: [] for kind in kinds}
    block(args, client, "warm")
    for number in range(args.rounds):
        for kind in list(kinds)[:: 1 if number % 2 == 0 else -1]:
            with kinds[kind]():
                times[kind].extend(block(args, client, number))
            if loads.fault:
                sys.exit(loads.fault)
            print(f"round {number + 1}, {kind}: {percentiles_ms(times[kind])}", file=sys.stderr)
    return times, loads


def percentiles_ms(seconds):
    """The nearest ranks of a list of times, and the longest of them."""
    ordered = sorted(seconds)
    rank = lambda percent: ordered[math.ceil(len(ordered) * percent / 100) - 1]
    return {f"p{percent}": round(rank(percent) * 1000, 1) for percent in (50, 99, 100)}


def main():
    args = arguments()
    times, loads = measure(args)
    rows = {kind: percentiles_ms(seconds) for kind, seconds in times.items()}
    load_ms = percentiles_ms(loads.load_s) if loads.load_s else None
    if args.json:
        print(json.dumps({"answer_ms": rows, "loads": loads.counts, "load_ms": load_ms}))
        return
    print("| answers | p50, ms | p99, ms | longest, ms |")
    print("|---|--:|--:|--:|")
    for kind, row in rows.items():
        print(f"| {kind} | {row['p50']} | {row['p99']} | {row['p100']} |")
    of = f", each in {load_ms['p50']} ms (p99 {load_ms['p99']})" if load_ms else ""
    print(f"{loads.counts['loaded']} loads{of}; {loads.counts['refused']} refused")


if __name__ == "__main__":
    main()
