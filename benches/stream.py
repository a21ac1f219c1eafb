"""One streamed chat completion: what came, when it came, and what was wrong with it.

Shared by load.py and concurrency.py; needs nothing but Python's own library.
"""

import dataclasses
import http.client
import json
import random
import time
import urllib.parse

# Common words that most vocabularies hold whole, so that a word is about a token.
WORDS = (
    "river stone light garden winter letter music window market silver "
    "bread horse cloud paper street summer forest bridge candle harbor "
    "road song apple field story night clock glass train island"
).split()

# A server that sends nothing for so long is taken to hang.
SILENCE_LIMIT_S = 300


@dataclasses.dataclass
class Answer:
    """What became of one request; times are seconds of the monotonic clock."""

    sent: float
    # 0 when the connection failed before there was one.
    status: int = 0
    # When each event with text arrived.
    arrivals: list = dataclasses.field(default_factory=list)
    completion_tokens: int = 0
    prompt_tokens: int = 0
    retry_after_s: float | None = None
    # What an answer of this status should not have, in words.
    fault: str | None = None

    def tokens_between(self, start, end):
        """Tokens generated in (start, end]: the engine's count, spread evenly over the events.

        An event may carry more than one token, so that events alone would count too few.
        """
        if not self.arrivals:
            return 0.0
        inside = sum(start < arrival <= end for arrival in self.arrivals)
        return self.completion_tokens * inside / len(self.arrivals)


class Client:
    """Asks one server; each request has a connection of its own.

    A kept connection that the other side has just given up looks like a lost answer.
    """

    def __init__(self, url, model, api_key):
        parts = urllib.parse.urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{url!r} is no address like http://127.0.0.1:11435")
        self.address = (parts.hostname, parts.port)
        self.is_secure = parts.scheme == "https"
        # The address of the server or of its API: both are in use.
        self.path = parts.path.rstrip("/").removesuffix("/v1") + "/v1/chat/completions"
        self.model = model
        self.headers = {"Content-Type": "application/json", "Connection": "close"}
        if api_key:
            self.headers["Authorization"] = f"Bearer {api_key}"

    def ask(self, prompt, max_tokens, extra=None):
        """Asks greedily for an answer, reads it to its end and returns the Answer."""
        body = {
            "model": self.model,
            "messages": [{"role": "user", "content": prompt}],
            "max_tokens": max_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
            **(extra or {}),
        }
        kind = http.client.HTTPSConnection if self.is_secure else http.client.HTTPConnection
        connection = kind(*self.address, timeout=SILENCE_LIMIT_S)
        answer = Answer(sent=time.monotonic())
        try:
            connection.request("POST", self.path, json.dumps(body), self.headers)
            response = connection.getresponse()
            answer.status = response.status
            if response.status == 200:
                read_events(response, answer)
            else:
                read_refusal(response, answer)
        except (OSError, http.client.HTTPException) as error:
            answer.fault = f"{type(error).__name__}: {error}"
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            # Not of the shape that the interface has.
            answer.fault = f"{type(error).__name__}: {error}"
        finally:
            connection.close()
        return answer


def read_events(response, answer):
    """Reads the events of a stream and notes what it lacks."""
    done = counted = False
    for line in response:
        if not line.startswith(b"data:"):
            continue
        data = line[5:].strip()
        if done:
            answer.fault = "an event after [DONE]"
        if data == b"[DONE]":
            done = True
            continue
        event = json.loads(data)
        if "error" in event:
            answer.fault = f"an error within the stream: {event['error']}"
        if any(has_text(choice) for choice in event.get("choices", [])):
            answer.arrivals.append(time.monotonic())
        if event.get("usage"):
            counted = True
            answer.completion_tokens = event["usage"]["completion_tokens"]
            answer.prompt_tokens = event["usage"]["prompt_tokens"]
    if not done:
        answer.fault = answer.fault or "the stream ended without [DONE]"
    elif not counted:
        answer.fault = answer.fault or "the stream had no usage"


def has_text(choice):
    delta = choice.get("delta", {})
    return bool(delta.get("content") or delta.get("reasoning_content"))


def read_refusal(response, answer):
    """Notes when to come back; only 429 and 503 may send anybody away, and only with a time."""
    body = response.read()
    wait = response.getheader("Retry-After")
    if answer.status not in (429, 503):
        answer.fault = f"status {answer.status}: {body[:200].decode(errors='replace')}"
    elif wait is None:
        answer.fault = f"status {answer.status} without Retry-After"
    else:
        answer.retry_after_s = float(wait)


def prompt_of(tokens, seed):
    """A prompt of about so many tokens that no other seed shares the beginning of."""
    chance = random.Random(seed)
    words = [chance.choice(WORDS) for _ in range(max(1, tokens - 12))]
    return f"Tell a long story with these words: {' '.join(words)}"
