#!/usr/bin/env python3
"""Lets clients hang up at random moments and tells whether the server is whole afterwards.

Half of them ask for a stream. With more clients at once than the server has replicas they leave while they wait, while
their prompt is read and while they are answered. Two seconds after the last has left every replica must be idle and
nobody may wait; then one more request is timed. Exit code 1 if not.
"""

import argparse
import json
import random
import socket
import sys
import threading
import time
import urllib.parse
import urllib.request

WHOLE_WITHIN_S = 2


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--url", default="http://127.0.0.1:11435")
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--at-once", type=int, default=32)
    parser.add_argument("--longest-ms", type=int, default=1500, help="the latest moment at which one leaves")
    parser.add_argument("--prompt-words", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


def request(host, body):
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\n"
    return f"{head}content-length: {len(body)}\r\n\r\n{body}".encode()


def leave(args, address, chance, seen):
    """Sends a request, reads for a while and hangs up."""
    words = " ".join(chance.choice(["fox", "river", "stone", "lamp"]) for _ in range(chance.randint(1, args.prompt_words)))
    is_stream = chance.random() < 0.5
    body = json.dumps({
        "model": "default", "stream": is_stream, "max_tokens": 4000, "temperature": 1,
        "messages": [{"role": "user", "content": words}],
    })
    end = time.monotonic() + chance.random() * args.longest_ms / 1000
    received = b""
    with socket.create_connection(address) as connection:
        connection.sendall(request(args.url.split("//")[1], body))
        while (left := end - time.monotonic()) > 0:
            connection.settimeout(left)
            try:
                received += (piece := connection.recv(65536))
            except TimeoutError:
                break
            if not piece:
                break
    status = received.split(b" ", 2)[1].decode() if received else "none"
    moment = "answered" if b'"content":"' in received or b'"choices"' in received else "before"
    key = (("stream" if is_stream else "whole"), status, moment)
    seen[key] = seen.get(key, 0) + 1


def work(args, address, numbers, lock, seen):
    while True:
        with lock:
            if not numbers:
                return
            number = numbers.pop()
        leave(args, address, random.Random(args.seed * 1_000_003 + number), seen)


def queue(url):
    with urllib.request.urlopen(f"{url}/admin/v1/queue") as answer:
        return json.load(answer)["models"][0]


def main():
    args = arguments()
    parts = urllib.parse.urlsplit(args.url)
    numbers, lock, seen = list(range(args.clients)), threading.Lock(), {}
    workers = [
        threading.Thread(target=work, args=(args, (parts.hostname, parts.port), numbers, lock, seen))
        for _ in range(args.at_once)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    left = time.monotonic()
    while True:
        model = queue(args.url)
        is_whole = model["replicas"]["idle"] == model["replicas"]["size"] and model["waiting"] == 0
        took = time.monotonic() - left
        if is_whole or took > WHOLE_WITHIN_S:
            break
        time.sleep(0.01)
    for (kind, status, moment), count in sorted(seen.items()):
        print(f"{count:6}  {kind:6}  status {status:4}  left {'after text' if moment == 'answered' else 'before text'}")
    print(f"{'whole' if is_whole else 'NOT whole'} {took * 1000:.0f} ms after the last had left: {json.dumps(model)}")
    began = time.monotonic()
    body = json.dumps({"model": "default", "max_tokens": 1, "messages": [{"role": "user", "content": "Hi"}]})
    asked = urllib.request.Request(f"{args.url}/v1/chat/completions", body.encode(), {"content-type": "application/json"})
    with urllib.request.urlopen(asked) as answer:
        answer.read()
    print(f"the next request took {(time.monotonic() - began) * 1000:.0f} ms")
    sys.exit(not is_whole)


if __name__ == "__main__":
    main()
