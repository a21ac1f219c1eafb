#!/usr/bin/env python3
"""Puts load on a server with an OpenAI chat API and tells how it bore it.

Every connection sends its next request when the last one is answered. Each answer must be 200 and
complete ([DONE], a usage chunk), or 429 or 503 with Retry-After; anything else is told and makes
the exit code 1.

Tokens per second are the engine's own counts, over the time in which all connections were busy:
until the first of them found no further request to send.
"""

import argparse
import collections
import itertools
import json
import math
import sys
import threading
import time

import stream

MINUTE_S = 60


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--url", default="http://127.0.0.1:11435")
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--prompt-tokens", type=int, default=100, help="about so many")
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--model", default="default")
    parser.add_argument("--api-key")
    parser.add_argument("--pid", type=int, help="the server's process, to tell its memory")
    parser.add_argument("--wait", action="store_true", help="obey Retry-After")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    args = parser.parse_args()
    # A connection without a request would never be busy.
    args.connections = min(args.connections, args.requests)
    if args.connections < 1:
        parser.error("--requests and --connections are at least 1")
    return args


class Run:
    """The requests still to be sent and the answers that came."""

    def __init__(self, args):
        self.args = args
        self.client = stream.Client(args.url, args.model, args.api_key)
        self.numbers = itertools.count()
        self.answers = []
        self.lock = threading.Lock()
        # When the first connection had nothing more to send.
        self.idle_since = math.inf

    def next_number(self):
        with self.lock:
            number = next(self.numbers)
            if number < self.args.requests:
                return number
            self.idle_since = min(self.idle_since, time.monotonic())
            return None

    def serve_connection(self):
        args = self.args
        while (number := self.next_number()) is not None:
            prompt = stream.prompt_of(args.prompt_tokens, number)
            answer = self.client.ask(prompt, args.max_tokens)
            with self.lock:
                self.answers.append(answer)
            if args.wait and answer.retry_after_s:
                time.sleep(answer.retry_after_s)


def resident_mib(pid):
    """The resident memory of a process, or None when it cannot be told."""
    try:
        with open(f"/proc/{pid}/status", encoding="utf-8") as status:
            for line in status:
                if line.startswith("VmRSS:"):
                    return round(int(line.split()[1]) / 1024, 1)
    except OSError:
        pass
    return None


class Memory:
    """Reads a process's memory at the start, at minute one and at the end."""

    def __init__(self, pid):
        self.pid = pid
        self.figures = {"start": resident_mib(pid), "minute_one": None, "end": None}
        self.timer = threading.Timer(MINUTE_S, self.read, ["minute_one"])
        self.timer.daemon = True
        self.timer.start()

    def read(self, moment):
        self.figures[moment] = resident_mib(self.pid)

    def end(self):
        self.timer.cancel()
        self.read("end")
        return self.figures


def percentiles_ms(seconds):
    """The nearest ranks of a list of times."""
    if not seconds:
        return None
    ordered = sorted(seconds)
    rank = lambda percent: ordered[math.ceil(len(ordered) * percent / 100) - 1]
    return {f"p{percent}": round(rank(percent) * 1000, 1) for percent in (50, 99)}


def report(run, started, memory):
    answers = run.answers
    good = [answer for answer in answers if answer.status == 200 and not answer.fault]
    busy_s = run.idle_since - started
    tokens = sum(answer.tokens_between(started, run.idle_since) for answer in good)
    between = [
        later - earlier
        for answer in good
        for earlier, later in itertools.pairwise(answer.arrivals)
    ]
    statuses = collections.Counter(answer.status for answer in answers)
    faults = collections.Counter(answer.fault for answer in answers if answer.fault)
    return {
        "requests": len(answers),
        "connections": run.args.connections,
        "statuses": {str(status): count for status, count in sorted(statuses.items())},
        "faults": dict(faults.most_common(10)),
        "wall_s": round(time.monotonic() - started, 1),
        "busy_s": round(busy_s, 1),
        "prompt_tokens": sum(answer.prompt_tokens for answer in good),
        "completion_tokens": sum(answer.completion_tokens for answer in good),
        "tokens_per_s": round(tokens / busy_s, 1),
        "first_token_ms": percentiles_ms([a.arrivals[0] - a.sent for a in good if a.arrivals]),
        "inter_token_ms": percentiles_ms(between),
        "resident_mib": memory,
    }


def print_report(figures):
    def times(figures):
        return "-" if figures is None else f"p50 {figures['p50']} ms, p99 {figures['p99']} ms"

    rows = {
        "answers": ", ".join(f"{count} × {status}" for status, count in figures["statuses"].items()),
        "tokens": f"{figures['prompt_tokens']} read, {figures['completion_tokens']} generated",
        "generated": f"{figures['tokens_per_s']} tokens/s while all {figures['connections']} "
        f"connections were busy ({figures['busy_s']} of {figures['wall_s']} s)",
        "first token": times(figures["first_token_ms"]),
        "between tokens": times(figures["inter_token_ms"]),
    }
    if memory := figures["resident_mib"]:
        tell = lambda moment: "-" if memory[moment] is None else f"{memory[moment]} MiB"
        rows["resident"] = (
            f"{tell('start')} at the start, {tell('minute_one')} at minute one, "
            f"{tell('end')} at the end"
        )
    for name, text in rows.items():
        print(f"{name:<15} {text}")
    for fault, count in figures["faults"].items():
        print(f"{'WRONG':<15} {count} × {fault}")


def main():
    args = arguments()
    run = Run(args)
    memory = Memory(args.pid) if args.pid else None
    threads = [threading.Thread(target=run.serve_connection) for _ in range(args.connections)]
    started = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    figures = report(run, started, memory.end() if memory else None)
    if args.json:
        print(json.dumps(figures))
    else:
        print_report(figures)
    return 1 if figures["faults"] or figures["requests"] != args.requests else 0


if __name__ == "__main__":
    sys.exit(main())
