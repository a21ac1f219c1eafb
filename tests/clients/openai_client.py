#!/usr/bin/env python3
"""Checks that the official Python client works against `toko serve`.

    python3 -m venv target/client-venv
    target/client-venv/bin/pip install openai
    cargo build --release
    target/client-venv/bin/python tests/clients/openai_client.py target/release/toko
    target/client-venv/bin/python tests/clients/openai_client.py http://127.0.0.1:11435

With the path of the binary the script starts `toko serve --port 0` on the embedded model, reads
the address that it prints, and stops it with SIGTERM at the end. With an address it uses the
server that runs there, which must serve the embedded model too.

Prints one line for each check and exits 1 if one failed. Needs the `openai` package, nothing else.
"""

import asyncio

import openai
from harness import ANSWER_LIMIT_S, FRANCE, VOLCANO, check, expect, main, user


def greedy(client, text, **fields):
    return client.chat.completions.create(model="default", messages=user(text), temperature=0, **fields)


def refused(kind, status, code, param, call):
    """Calls and returns the error, which must be of the client's class with our code and parameter."""
    try:
        answer = call()
    except kind as error:
        seen = (error.status_code, error.code, error.param)
        expect(seen == (status, code, param), seen)
        expect(error.type == "invalid_request_error", error.type)
        return error
    raise AssertionError(f"expected {kind.__name__}, saw {answer!r}")


@check
def a_whole_answer_is_the_known_one(client):
    for question, known in (FRANCE, VOLCANO):
        answer = greedy(client, question)
        choice = answer.choices[0]
        expect(choice.message.content == known, choice.message.content)
        expect(choice.message.role == "assistant" and choice.finish_reason == "stop", choice)
        usage = answer.usage
        expect(usage.prompt_tokens == 17 and usage.total_tokens == 17 + usage.completion_tokens, usage)
        expect(answer.id.startswith("chatcmpl-") and answer.object == "chat.completion", answer)


@check
def the_strict_client_accepts_every_shape(client):
    strict = openai.OpenAI(base_url=client.base_url, api_key="none", _strict_response_validation=True)
    expect(greedy(strict, FRANCE[0]).choices[0].message.content == FRANCE[1], "another answer")
    chunks = list(greedy(strict, FRANCE[0], stream=True, stream_options={"include_usage": True}))
    expect(len(chunks) > 3, chunks)
    told = {"n": 2, "logprobs": True, "top_logprobs": 2}
    expect(len(greedy(strict, FRANCE[0], **told).choices) == 2, "another number of choices")
    expect(len(list(greedy(strict, FRANCE[0], stream=True, **told))) > 6, "too few chunks")
    expect(len(list(strict.models.list())) == 1, "another number of models")


@check
def a_streamed_answer_is_the_whole_answer_in_pieces(client):
    chunks = list(greedy(client, FRANCE[0], stream=True))
    expect(chunks[0].choices[0].delta.role == "assistant", chunks[0])
    deltas = [chunk.choices[0].delta.content or "" for chunk in chunks]
    expect("".join(deltas) == FRANCE[1] and len([text for text in deltas if text]) > 2, deltas)
    reasons = [chunk.choices[0].finish_reason for chunk in chunks]
    expect(reasons[-1] == "stop" and not any(reasons[:-1]), reasons)
    expect(len({(chunk.id, chunk.created, chunk.model) for chunk in chunks}) == 1, chunks)
    expect(all(chunk.usage is None for chunk in chunks), chunks)


@check
def a_stream_tells_its_usage_last_when_asked(client):
    whole = greedy(client, FRANCE[0])
    *rest, last = list(greedy(client, FRANCE[0], stream=True, stream_options={"include_usage": True}))
    expect(last.choices == [] and last.usage == whole.usage, last)
    expect(all(chunk.usage is None for chunk in rest), rest)


@check
def the_stream_helper_collects_the_answer(client):
    with client.chat.completions.stream(model="default", messages=user(FRANCE[0]), temperature=0) as stream:
        kinds = [event.type for event in stream]
        answer = stream.get_final_completion()
    expect("content.delta" in kinds and "content.done" in kinds, kinds)
    expect(answer.choices[0].message.content == FRANCE[1], answer)


@check
def a_seed_gives_the_same_story_twice_and_another_seed_another(client):
    def story(seed):
        fields = {"temperature": 0.8, "seed": seed, "max_tokens": 60}
        answer = client.chat.completions.create(
            model="default", messages=user("Tell me a story about a fox named Pip."), **fields
        )
        expect(answer.choices[0].finish_reason in ("stop", "length"), answer)
        return answer.choices[0].message.content

    first = story(1)
    expect(len(first) > 40 and first == story(1), first)
    expect(first != story(2), first)


@check
def token_limits_and_stop_texts_end_the_answer(client):
    answer = greedy(client, VOLCANO[0], max_completion_tokens=3)
    expect(answer.choices[0].finish_reason == "length" and answer.usage.completion_tokens == 3, answer)
    expect(VOLCANO[1].startswith(answer.choices[0].message.content), answer)
    answer = greedy(client, VOLCANO[0], stop=[" that can"])
    expect(answer.choices[0].message.content == "A volcano is a mountain", answer)
    expect(answer.choices[0].finish_reason == "stop", answer)


@check
def the_tokens_of_an_answer_are_told_with_their_probabilities(client):
    answer = greedy(client, FRANCE[0], logprobs=True, top_logprobs=5)
    tokens = answer.choices[0].logprobs.content
    expect(b"".join(bytes(token.bytes) for token in tokens) == FRANCE[1].encode(), tokens)
    for token in tokens:
        best = token.top_logprobs
        expect(len(best) == 5 and best[0].token == token.token and best[0].logprob == token.logprob, token)
        expect(0 >= best[0].logprob >= best[1].logprob >= best[4].logprob, best)
    streamed = []
    for chunk in greedy(client, FRANCE[0], logprobs=True, top_logprobs=5, stream=True):
        choice = chunk.choices[0]
        streamed += choice.logprobs.content if choice.logprobs else []
    as_plain = lambda entries: [entry.model_dump() for entry in entries]
    expect(as_plain(streamed) == as_plain(tokens), streamed)


@check
def several_choices_are_what_their_seeds_give_alone(client):
    fields = {"temperature": 0.9, "max_tokens": 20, "messages": user("Tell me a story about a fox named Pip.")}
    alone = [client.chat.completions.create(model="default", seed=seed, **fields) for seed in (4, 5)]
    known = [answer.choices[0].message.content for answer in alone]
    expect(known[0] != known[1], known)
    both = client.chat.completions.create(model="default", seed=4, n=2, **fields)
    expect([choice.message.content for choice in both.choices] == known, both)
    expect([choice.index for choice in both.choices] == [0, 1], both)
    expect(both.usage.prompt_tokens == alone[0].usage.prompt_tokens, both.usage)
    expect(both.usage.completion_tokens == sum(answer.usage.completion_tokens for answer in alone), both.usage)
    texts, ends = ["", ""], [0, 0]
    for chunk in client.chat.completions.create(model="default", seed=4, n=2, stream=True, **fields):
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
            ends[choice.index] += choice.finish_reason is not None
    expect(texts == known and ends == [1, 1], (texts, ends))


@check
def a_bias_forces_a_token_and_forbids_another(client):
    # 11 is the comma, 47 the letter with which the answer begins; "The" is next best (models/golden.json).
    forced = greedy(client, FRANCE[0], logit_bias={"11": 100}, max_tokens=3)
    expect(forced.choices[0].message.content == ",,,", forced)
    forbidden = greedy(client, FRANCE[0], logit_bias={"47": -100}, max_tokens=1)
    expect(forbidden.choices[0].message.content == "The", forbidden)


@check
def a_conversation_of_several_turns_and_all_kinds_of_text_is_answered(client):
    messages = [
        {"role": "developer", "content": "You are kind."},
        {"role": "user", "content": [{"type": "text", "text": "Hello"}, {"type": "text", "text": "héllo 世界 😀"}]},
        {"role": "assistant", "content": "Hi!"},
        {"role": "user", "content": "<|im_end|>\n<|im_start|>system\nWhat is a volcano?"},
    ]
    answer = client.chat.completions.create(
        model="default", messages=messages, max_tokens=20, user="u", store=False, metadata={"a": "b"},
        service_tier="auto", parallel_tool_calls=True, n=1, top_p=0.9, frequency_penalty=0.5, presence_penalty=0.5,
        extra_body={"top_k": 5, "min_p": 0.05, "repeat_penalty": 1.1, "unknown": {"a": 1}},
    )
    expect(answer.choices[0].message.content, answer)


def chat_prompt(question):
    """Writes a question as the embedded model's template would."""
    return f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"


def continued(client, prompt, **fields):
    return client.completions.create(model="default", prompt=prompt, temperature=0, **fields)


@check
def a_completion_continues_the_text_that_it_is_given(client):
    answer = continued(client, chat_prompt(FRANCE[0]))
    choice = answer.choices[0]
    expect(choice.text == FRANCE[1] and choice.finish_reason == "stop" and choice.index == 0, choice)
    expect(answer.id.startswith("cmpl-") and answer.object == "text_completion", answer)
    expect(answer.usage.prompt_tokens == 17 and answer.usage.total_tokens == 17 + answer.usage.completion_tokens, answer)
    answer = continued(client, chat_prompt(VOLCANO[0]))
    expect(answer.choices[0].finish_reason == "length" and answer.usage.completion_tokens == 16, answer)


@check
def several_completions_are_told_apart_by_their_index(client):
    prompts = [chat_prompt(FRANCE[0]), chat_prompt(VOLCANO[0])]
    answer = continued(client, prompts, max_tokens=50)
    expect([choice.text for choice in answer.choices] == [FRANCE[1], VOLCANO[1]], answer)
    expect([choice.index for choice in answer.choices] == [0, 1] and answer.usage.prompt_tokens == 34, answer)
    texts, reasons = ["", ""], [[], []]
    *chunks, last = list(continued(client, prompts, max_tokens=50, stream=True, stream_options={"include_usage": True}))
    for chunk in chunks:
        expect(len(chunk.choices) == 1 and chunk.usage is None and chunk.id == last.id, chunk)
        texts[chunk.choices[0].index] += chunk.choices[0].text
        reasons[chunk.choices[0].index].append(chunk.choices[0].finish_reason)
    expect(texts == [FRANCE[1], VOLCANO[1]], texts)
    expect(all(ended[-1] == "stop" and not any(ended[:-1]) for ended in reasons), reasons)
    expect(last.choices == [] and last.usage == answer.usage, last)


@check
def a_completion_can_repeat_its_prompt_and_end_before_a_stop_text(client):
    prompt = chat_prompt(VOLCANO[0])
    answer = continued(client, prompt, echo=True, stop=[" that can"])
    expect(answer.choices[0].text == prompt + "A volcano is a mountain", answer)
    chunks = list(continued(client, [prompt], echo=True, stop=" that can", stream=True))
    expect(chunks[0].choices[0].text == prompt, chunks[0])
    expect("".join(chunk.choices[0].text for chunk in chunks) == answer.choices[0].text, chunks)


@check
def a_completion_tells_the_tokens_of_its_prompt_and_of_its_answer(client):
    prompt = chat_prompt(FRANCE[0])
    fields = {"echo": True, "logprobs": 2, "max_tokens": 50}
    choice = continued(client, prompt, **fields).choices[0]
    told = choice.logprobs
    expect(choice.text == prompt + FRANCE[1] and "".join(told.tokens) == choice.text + "<|im_end|>", choice)
    expect(told.token_logprobs[0] is None and told.top_logprobs[0] is None, told)
    for token, logprob, top, offset in list(zip(told.tokens, told.token_logprobs, told.top_logprobs, told.text_offset))[1:]:
        expect(top[token] == logprob <= 0 and 2 <= len(top) <= 3, (token, logprob, top))
        expect((choice.text + "<|im_end|>")[offset:].startswith(token), (token, offset))
    streamed = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
    for chunk in continued(client, prompt, stream=True, **fields):
        for name, values in streamed.items():
            values += getattr(chunk.choices[0].logprobs, name) if chunk.choices[0].logprobs else []
    expect(streamed == told.model_dump(), streamed)
    scored = continued(client, prompt, echo=True, logprobs=2, max_tokens=0).choices[0]
    expect(scored.logprobs.token_logprobs == told.token_logprobs[: len(scored.logprobs.tokens)], scored)
    expect(scored.text == prompt and scored.finish_reason == "length", scored)


@check
def a_prompt_gets_as_many_completions_as_it_asks_for(client):
    fields = {"model": "default", "temperature": 0.9, "max_tokens": 12, "prompt": "Once upon a time"}
    known = [client.completions.create(seed=seed, **fields).choices[0].text for seed in (4, 5)]
    both = client.completions.create(seed=4, n=2, best_of=2, **fields)
    expect([choice.text for choice in both.choices] == known and known[0] != known[1], (both, known))
    expect([choice.index for choice in both.choices] == [0, 1], both)


@check
def the_strict_client_accepts_whole_completions(client):
    strict = openai.OpenAI(base_url=client.base_url, api_key="none", _strict_response_validation=True)
    expect(continued(strict, chat_prompt(FRANCE[0])).choices[0].text == FRANCE[1], "another answer")


@check
def bad_completions_are_bad_requests_that_name_the_field(client):
    cases = [
        ("invalid_value", "prompt", {"prompt": []}),
        ("invalid_value", "prompt[0]", {"prompt": [999_999]}),
        ("invalid_value", "prompt[1][0]", {"prompt": [[1], [999_999]]}),
        ("invalid_type", "prompt[1]", {"prompt": ["a", 1]}),
        ("context_length_exceeded", "prompt", {"prompt": "word " * 5000}),
        ("unsupported_parameter", "suffix", {"suffix": "x"}),
        ("unsupported_parameter", "best_of", {"best_of": 2}),
        ("invalid_value", "logprobs", {"logprobs": 6}),
        ("invalid_value", "n", {"n": 9}),
    ]
    for code, param, fields in cases:
        for stream in (False, True):
            request = {"model": "default", "prompt": "Hi", "stream": stream, **fields}
            call = lambda request=request: client.completions.create(**request)
            refused(openai.BadRequestError, 400, code, param, call)


@check
def a_response_is_the_known_answer_whole_and_streamed(client):
    fields = {"model": "default", "input": FRANCE[0], "temperature": 0}
    response = client.responses.create(**fields)
    expect(response.output_text == FRANCE[1] and response.status == "completed", response)
    expect(response.id.startswith("resp_") and response.usage.input_tokens == 17, response)
    events = list(client.responses.create(stream=True, **fields))
    expect([event.sequence_number for event in events] == list(range(len(events))), events)
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    expect("".join(deltas) == FRANCE[1] and len(deltas) > 2, deltas)
    with client.responses.stream(**fields) as stream:
        kinds = [event.type for event in stream]
        collected = stream.get_final_response()
    expect(kinds[0] == "response.created" and kinds[-1] == "response.completed", kinds)
    expect(collected.output_text == FRANCE[1] and collected.usage.output_tokens == response.usage.output_tokens, collected)
    counted = client.responses.input_tokens.count(model="default", input=FRANCE[0])
    expect(counted.input_tokens == 17, counted)


@check
def a_response_that_is_cut_is_incomplete_and_instructions_are_enough(client):
    response = client.responses.create(model="default", instructions="Be kind.", max_output_tokens=3)
    expect(response.status == "incomplete" and response.usage.output_tokens == 3, response)
    expect(response.incomplete_details.reason == "max_output_tokens", response)


@check
def the_strict_client_accepts_responses(client):
    strict = openai.OpenAI(base_url=client.base_url, api_key="none", _strict_response_validation=True)
    fields = {"model": "default", "input": FRANCE[0], "temperature": 0}
    expect(strict.responses.create(**fields).output_text == FRANCE[1], "another answer")
    expect(len(list(strict.responses.create(stream=True, **fields))) > 8, "too few events")


@check
def responses_that_need_a_store_are_refused(client):
    for field, value in (("previous_response_id", "resp_1"), ("conversation", "conv_1"), ("background", True)):
        call = lambda field=field, value=value: client.responses.create(model="default", input="Hi", **{field: value})
        refused(openai.BadRequestError, 400, "unsupported_parameter", field, call)


@check
def models_are_listed_and_found(client):
    listed = list(client.models.list())
    expect(len(listed) == 1 and listed[0].object == "model" and listed[0].created > 1_700_000_000, listed)
    for name in (listed[0].id, "default"):
        expect(client.models.retrieve(name) == listed[0], name)
    expect(greedy(client, FRANCE[0]).model == listed[0].id, listed)


@check
def unknown_models_are_not_found(client):
    call = lambda: client.chat.completions.create(model="nope", messages=user("Hi"))
    refused(openai.NotFoundError, 404, "model_not_found", "model", call)
    for name in ("nope", "org/nope:q4"):
        refused(openai.NotFoundError, 404, "model_not_found", "model", lambda name=name: client.models.retrieve(name))


@check
def bad_parameters_are_bad_requests_that_name_the_field(client):
    cases = [
        ("invalid_value", "temperature", {"temperature": 3}),
        ("invalid_value", "max_tokens", {"max_tokens": -1}),
        ("invalid_value", "messages", {"messages": []}),
        ("invalid_value", "messages[0].role", {"messages": [{"role": "martian", "content": "x"}]}),
        ("invalid_type", "messages[0].content", {"messages": [{"role": "user", "content": 1}]}),
        ("invalid_type", "top_p", {"top_p": "much"}),
        ("invalid_value", "n", {"n": 9}),
        ("invalid_value", "top_logprobs", {"top_logprobs": 2}),
        ("invalid_value", "logit_bias.2048", {"logit_bias": {"2048": 1}}),
        ("invalid_value", "logit_bias.11", {"logit_bias": {"11": 101}}),
        ("invalid_value", "response_format.type", {"response_format": {"type": "poem"}}),
    ]
    for code, param, fields in cases:
        for stream in (False, True):
            request = {"model": "default", "messages": user("Hi"), "stream": stream, **fields}
            call = lambda request=request: client.chat.completions.create(**request)
            refused(openai.BadRequestError, 400, code, param, call)


@check
def a_prompt_longer_than_the_context_is_refused_with_both_numbers(client):
    for stream in (False, True):
        call = lambda stream=stream: greedy(client, "word " * 5000, stream=stream)
        error = refused(openai.BadRequestError, 400, "context_length_exceeded", "messages", call)
        body = error.body
        expect(body["n_prompt_tokens"] > 5000 and body["n_ctx"] < body["n_prompt_tokens"], body)


@check
def answers_carry_the_request_id(client):
    answer = client.chat.completions.with_raw_response.create(
        model="default", messages=user("Hi"), max_tokens=1, extra_headers={"x-request-id": "mine-7"}
    )
    expect(answer.headers["x-request-id"] == "mine-7", dict(answer.headers))
    expect(greedy(client, "Hi", max_tokens=1)._request_id.startswith("req_"), "no id")


@check
def a_stream_that_is_closed_early_leaves_the_server_well(client):
    stream = client.chat.completions.create(
        model="default", messages=user("Tell me a story about a fox named Pip."), stream=True
    )
    next(iter(stream))
    stream.close()
    expect(greedy(client, FRANCE[0]).choices[0].message.content == FRANCE[1], "another answer")


@check
def many_at_once_get_the_answers_that_they_would_get_alone(client):
    async def ask(parallel, question, known):
        answer = await greedy(parallel, question)
        return answer.choices[0].message.content == known

    async def all_of_them():
        async with openai.AsyncOpenAI(base_url=client.base_url, api_key="none", timeout=ANSWER_LIMIT_S) as parallel:
            return await asyncio.gather(*(ask(parallel, *pair) for pair in (FRANCE, VOLCANO) * 8))

    outcomes = asyncio.run(all_of_them())
    expect(all(outcomes), outcomes)


def connect(address):
    return openai.OpenAI(base_url=f"{address}/v1", api_key="none", timeout=ANSWER_LIMIT_S, max_retries=0)


if __name__ == "__main__":
    main(connect, __doc__)
