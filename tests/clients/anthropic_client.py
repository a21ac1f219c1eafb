#!/usr/bin/env python3
"""Checks that Anthropic's official Python client works against `toko serve`.

    python3 -m venv target/client-venv
    target/client-venv/bin/pip install anthropic
    cargo build --release
    target/client-venv/bin/python tests/clients/anthropic_client.py target/release/toko
    target/client-venv/bin/python tests/clients/anthropic_client.py http://127.0.0.1:11435

With the path of the binary the script starts `toko serve --port 0` on the embedded model, reads
the address that it prints, and stops it with SIGTERM at the end. With an address it uses the
server that runs there, which must serve the embedded model too.

Prints one line for each check and exits 1 if one failed. Needs the `anthropic` package, nothing else.
"""

import asyncio

import anthropic
from harness import ANSWER_LIMIT_S, FRANCE, VOLCANO, check, expect, main, user


def fields(text, **more):
    # Greedy whatever the server's defaults are: the clients no longer show temperature.
    return {"model": "default", "max_tokens": 60, "messages": user(text), "extra_body": {"temperature": 0}, **more}


def refused(kind, status, word, call):
    """Calls and returns the error, which must be of the client's class with Anthropic's word for it."""
    try:
        answer = call()
    except kind as error:
        seen = (error.status_code, error.body["type"], error.body["error"]["type"])
        expect(seen == (status, "error", word), seen)
        expect(error.request_id and error.request_id == error.body["request_id"], error.body)
        return error.body["error"]["message"]
    raise AssertionError(f"expected {kind.__name__}, saw {answer!r}")


@check
def a_whole_message_is_the_known_one(client):
    for question, known in (FRANCE, VOLCANO):
        message = client.messages.create(**fields(question))
        expect([(block.type, block.text) for block in message.content] == [("text", known)], message)
        expect(message.role == "assistant" and message.type == "message", message)
        expect((message.stop_reason, message.stop_sequence) == ("end_turn", None), message)
        expect(message.id.startswith("msg_") and message._request_id.startswith("req_"), message)
        usage = message.usage
        expect(usage.input_tokens + usage.cache_read_input_tokens == 17 and usage.output_tokens > 5, usage)


@check
def the_strict_client_accepts_every_shape(client):
    strict = anthropic.Anthropic(base_url=client.base_url, api_key="none", _strict_response_validation=True)
    expect(strict.messages.create(**fields(FRANCE[0])).content[0].text == FRANCE[1], "another answer")
    expect(len(list(strict.messages.create(**fields(FRANCE[0]), stream=True))) > 6, "too few events")
    expect(strict.messages.count_tokens(model="default", messages=user(FRANCE[0])).input_tokens == 17, "another count")


@check
def a_streamed_message_is_the_whole_one_in_events(client):
    events = list(client.messages.create(**fields(FRANCE[0]), stream=True))
    kinds = [event.type for event in events]
    expect(kinds[:2] == ["message_start", "content_block_start"], kinds)
    expect(kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"], kinds)
    deltas = [event.delta.text for event in events if event.type == "content_block_delta"]
    expect("".join(deltas) == FRANCE[1] and len(deltas) > 2, deltas)
    expect(events[0].message.usage.input_tokens == 17, events[0])


@check
def the_stream_helper_collects_the_message(client):
    whole = client.messages.create(**fields(FRANCE[0]))
    with client.messages.stream(**fields(FRANCE[0])) as stream:
        text = "".join(stream.text_stream)
        message = stream.get_final_message()
    expect(text == FRANCE[1] and message.content[0].text == FRANCE[1], message)
    expect((message.stop_reason, message.model) == ("end_turn", whole.model), message)
    expect(message.usage.output_tokens == whole.usage.output_tokens, message.usage)
    expect(message.usage.input_tokens + message.usage.cache_read_input_tokens == 17, message.usage)


@check
def limits_and_stop_sequences_end_the_message(client):
    message = client.messages.create(**fields(VOLCANO[0], max_tokens=3))
    expect(message.stop_reason == "max_tokens" and message.usage.output_tokens == 3, message)
    stops = {"stop_sequences": ["never", " that can"]}
    message = client.messages.create(**fields(VOLCANO[0]), **stops)
    seen = (message.content[0].text, message.stop_reason, message.stop_sequence)
    expect(seen == ("A volcano is a mountain", "stop_sequence", " that can"), seen)
    with client.messages.stream(**fields(VOLCANO[0]), **stops) as stream:
        expect(stream.get_final_message().stop_sequence == " that can", "another end")


@check
def tokens_are_counted_as_they_are_used(client):
    count = client.messages.count_tokens(
        model="default", system=[{"type": "text", "text": "You are kind."}], messages=user(VOLCANO[0])
    )
    usage = client.messages.create(**fields(VOLCANO[0], system="You are kind.", max_tokens=1)).usage
    expect(count.input_tokens == usage.input_tokens + usage.cache_read_input_tokens > 17, (count, usage))


@check
def a_conversation_with_thoughts_calls_and_results_is_answered(client):
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "Hello"}, {"type": "text", "text": "héllo 世界 😀"}]},
        {"role": "assistant", "content": [
            {"type": "thinking", "thinking": "hm", "signature": ""},
            {"type": "text", "text": "I look."},
            {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {"at": "sky"}},
        ]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": "blue"}]},
    ]
    message = client.messages.create(
        model="default", max_tokens=20, messages=messages, system="You are kind.", metadata={"user_id": "u"},
        service_tier="auto", thinking={"type": "disabled"}, output_config={"effort": "low"},
        extra_body={"temperature": 0.9, "top_k": 5, "top_p": 0.9},
    )
    expect(message.content[0].text, message)


@check
def bad_fields_are_bad_requests_that_name_the_field(client):
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}
    cases = [
        ("max_tokens", {"max_tokens": 0}),
        ("temperature", {"extra_body": {"temperature": 1.5}}),
        ("messages", {"messages": []}),
        ("messages[0].content[0]", {"messages": [{"role": "user", "content": [image]}]}),
        ("tools[0].type", {"tools": [{"type": "web_search_20250305", "name": "web_search"}]}),
    ]
    for field, more in cases:
        for stream in (False, True):
            call = lambda more=more, stream=stream: client.messages.create(**fields("Hi", stream=stream, **more))
            said = refused(anthropic.BadRequestError, 400, "invalid_request_error", call)
            expect(said.startswith(field), said)


@check
def unknown_models_are_not_found_and_long_prompts_refused(client):
    call = lambda: client.messages.create(**fields("Hi", model="nope"))
    refused(anthropic.NotFoundError, 404, "not_found_error", call)
    call = lambda: client.messages.count_tokens(model="nope", messages=user("Hi"))
    refused(anthropic.NotFoundError, 404, "not_found_error", call)
    call = lambda: client.messages.create(**fields("word " * 5000))
    refused(anthropic.BadRequestError, 400, "invalid_request_error", call)


@check
def a_stream_that_is_closed_early_leaves_the_server_well(client):
    stream = client.messages.create(**fields("Tell me a story about a fox named Pip."), stream=True)
    next(iter(stream))
    stream.close()
    expect(client.messages.create(**fields(FRANCE[0])).content[0].text == FRANCE[1], "another answer")


@check
def many_at_once_get_the_answers_that_they_would_get_alone(client):
    async def ask(parallel, question, known):
        message = await parallel.messages.create(**fields(question))
        return message.content[0].text == known

    async def all_of_them():
        async with anthropic.AsyncAnthropic(base_url=client.base_url, api_key="none", timeout=ANSWER_LIMIT_S) as parallel:
            return await asyncio.gather(*(ask(parallel, *pair) for pair in (FRANCE, VOLCANO) * 8))

    outcomes = asyncio.run(all_of_them())
    expect(all(outcomes), outcomes)


def connect(address):
    return anthropic.Anthropic(base_url=address, api_key="none", timeout=ANSWER_LIMIT_S, max_retries=0)


if __name__ == "__main__":
    main(connect, __doc__)
