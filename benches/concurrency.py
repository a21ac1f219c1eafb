#!/usr/bin/env python3
"""Compares how fast two servers decode for 1, 2, 4 and 8 clients at once.

Both run already and serve the same model. Round by round each gets the same greedy requests, in
turns and never both at a time; who is first changes with the round. What is measured is the time
in which all answers of a round are being written: from the moment when the last of them has begun
until the first of them ends. A rate is the engine's count of tokens in that time, and a ratio is
the median of the rounds' ratios.
"""

import argparse
import json
import statistics
import sys
import threading

import stream


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("ours", help="the address of one server")
    parser.add_argument("theirs", help="the address of the other")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--prompt-tokens", type=int, default=32, help="about so many")
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--model", default="default")
    parser.add_argument(
        "--never",
        type=int,
        nargs="+",
        default=[],
        metavar="ID",
        help="tokens that are not chosen: the model's end tokens, so that no answer is short",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    return parser.parse_args()


def answers_of(url, args, clients, seed):
    """Asks a server as several clients at once and returns their answers."""
    extra = {"logit_bias": {str(token): -100 for token in args.never}} if args.never else {}
    answers = [None] * clients
    gate = threading.Barrier(clients)

    def ask(index):
        client = stream.Client(url, args.model, None)
        prompt = stream.prompt_of(args.prompt_tokens, f"{seed} {index}")
        gate.wait()
        answers[index] = client.ask(prompt, args.max_tokens, extra)

    threads = [threading.Thread(target=ask, args=[index]) for index in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return answers


def rate_of(url, args, clients, seed):
    """Tokens per second of all clients together while each of them is being answered."""
    answers = answers_of(url, args, clients, seed)
    for answer in answers:
        if answer.status != 200 or answer.fault:
            sys.exit(f"{url}: {answer.fault or f'status {answer.status}'}")
    start = max(answer.arrivals[0] for answer in answers if answer.arrivals)
    end = min(answer.arrivals[-1] for answer in answers if answer.arrivals)
    if end <= start:
        sys.exit(f"{url}: {clients} answers never overlapped; ask for more tokens, or see --never")
    return sum(answer.tokens_between(start, end) for answer in answers) / (end - start)


def measure(args):
    """Returns for each number of clients the rates of both servers, round by round."""
    servers = {"ours": args.ours, "theirs": args.theirs}
    rates = {clients: {name: [] for name in servers} for clients in args.clients}
    for url in servers.values():
        answers_of(url, args, max(args.clients), "warm")
    for number in range(args.rounds):
        for clients in args.clients:
            for name in list(servers)[:: 1 if number % 2 == 0 else -1]:
                rate = rate_of(servers[name], args, clients, f"{number} {clients}")
                rates[clients][name].append(rate)
                progress = f"round {number + 1}, {clients} clients, {name}: {rate:.1f} tokens/s"
                print(progress, file=sys.stderr)
    return rates


def summary(rates):
    """One row for each number of clients."""
    one = {name: statistics.median(next(iter(rates.values()))[name]) for name in ("ours", "theirs")}
    for clients, by_server in rates.items():
        ours, theirs = by_server["ours"], by_server["theirs"]
        ratios = [mine / other for mine, other in zip(ours, theirs)]
        yield {
            "clients": clients,
            "ours_tokens_per_s": round(statistics.median(ours), 1),
            "theirs_tokens_per_s": round(statistics.median(theirs), 1),
            "ratio": round(statistics.median(ratios), 2),
            "ratio_lowest": round(min(ratios), 2),
            "ratio_highest": round(max(ratios), 2),
            "ours_scaling": round(statistics.median(ours) / one["ours"], 2),
            "theirs_scaling": round(statistics.median(theirs) / one["theirs"], 2),
        }


def main():
    args = arguments()
    rows = list(summary(measure(args)))
    if args.json:
        print(json.dumps(rows))
        return
    first = args.clients[0]
    print("| clients | ours, tokens/s | theirs, tokens/s | ratio (lowest to highest of the rounds) "
          f"| ours against {first} | theirs against {first} |")
    print("|--:|--:|--:|--:|--:|--:|")
    for row in rows:
        print(f"| {row['clients']} | {row['ours_tokens_per_s']} | {row['theirs_tokens_per_s']} "
              f"| {row['ratio']} ({row['ratio_lowest']} to {row['ratio_highest']}) "
              f"| {row['ours_scaling']} × | {row['theirs_scaling']} × |")


if __name__ == "__main__":
    main()
