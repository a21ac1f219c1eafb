#!/usr/bin/env python3
"""Checks that Ollama's official Python client works against `toko serve`.

    python3 -m venv target/client-venv
    target/client-venv/bin/pip install ollama
    cargo build --release
    target/client-venv/bin/python tests/clients/ollama_client.py target/release/toko
    target/client-venv/bin/python tests/clients/ollama_client.py http://127.0.0.1:11435

With the path of the binary the script starts `toko serve --port 0` on the embedded model, reads
the address that it prints, and stops it with SIGTERM at the end. With an address it uses the
server that runs there, which must serve the embedded model too.

Prints one line for each check and exits 1 if one failed. Needs the `ollama` package, nothing else.
"""

import asyncio

import ollama
from harness import ANSWER_LIMIT_S, FRANCE, VOLCANO, check, expect, main, user

GREEDY = {"temperature": 0, "repeat_penalty": 1}


def chat(client, text, **fields):
    return client.chat(model="default", messages=user(text), options=GREEDY, **fields)


def refused(status, start, call):
    """Calls and checks the error: its status, and how its text begins."""
    try:
        answer = call()
    except ollama.ResponseError as error:
        expect(error.status_code == status and error.error.startswith(start), (error.status_code, error.error))
        return
    raise AssertionError(f"expected an error, saw {answer!r}")


@check
def a_whole_chat_answer_is_the_known_one(client):
    for question, known in (FRANCE, VOLCANO):
        answer = chat(client, question)
        expect(answer.message.content == known and answer.message.role == "assistant", answer)
        expect(answer.done and answer.done_reason == "stop" and answer.prompt_eval_count == 17, answer)
        expect(answer.eval_count > 5 and answer.total_duration > answer.eval_duration > 0, answer)


@check
def a_streamed_chat_answer_is_the_whole_one_in_parts(client):
    *parts, last = list(chat(client, FRANCE[0], stream=True))
    expect(len(parts) > 2 and not any(part.done for part in parts), parts)
    expect("".join(part.message.content for part in parts) == FRANCE[1], parts)
    expect(last.done and last.done_reason == "stop" and last.prompt_eval_count == 17, last)


@check
def a_prompt_is_answered_and_a_raw_one_continued(client):
    answer = client.generate(model="default", prompt=FRANCE[0], options=GREEDY)
    expect(answer.response == FRANCE[1] and answer.done, answer)
    raw = f"<|im_start|>user\n{FRANCE[0]}<|im_end|>\n<|im_start|>assistant\n"
    parts = list(client.generate(model="default", prompt=raw, raw=True, stream=True, options=GREEDY))
    expect("".join(part.response for part in parts) == FRANCE[1], parts)
    expect(parts[-1].prompt_eval_count == 17, parts[-1])


@check
def options_bound_and_stop_the_answer(client):
    options = {**GREEDY, "num_predict": 3}
    answer = client.chat(model="default", messages=user(VOLCANO[0]), options=options)
    expect(answer.done_reason == "length" and answer.eval_count == 3, answer)
    options = {**GREEDY, "stop": [" that can"]}
    answer = client.generate(model="default", prompt=VOLCANO[0], options=options)
    expect(answer.response == "A volcano is a mountain", answer)


@check
def a_seed_gives_the_same_story_twice_and_another_seed_another(client):
    def story(seed):
        options = ollama.Options(temperature=0.8, seed=seed, num_predict=60)
        return client.generate(model="default", prompt="Tell me a story about a fox named Pip.", options=options).response

    first = story(1)
    expect(len(first) > 40 and first == story(1), first)
    expect(first != story(2), first)


@check
def texts_become_vectors_of_length_one(client):
    both = client.embed(model="default", input=["The sun is hot.", "Rain"]).embeddings
    expect(len(both) == 2 and both[0] != both[1], both)
    expect(all(abs(sum(value * value for value in vector) - 1) < 1e-4 for vector in both), both)
    expect(client.embed(model="default", input="Rain").embeddings == [both[1]], "another vector")
    expect(client.embeddings(model="default", prompt="Rain").embedding == both[1], "another vector")


@check
def models_are_listed_shown_and_seen_in_memory(client):
    [model] = client.list().models
    expect(model.model and len(model.digest) == 64 and model.modified_at, model)
    shown = client.show(model.model)
    expect("completion" in shown.capabilities and shown.details.format == "gguf", shown)
    expect(shown.modelinfo["general.parameter_count"] > 1_000_000 and "im_start" in shown.template, shown)
    [running] = client.ps().models
    expect(running.model == model.model and running.context_length > 100, running)
    expect(running.digest == model.digest and running.size > 1_000_000, running)
    for name in (model.model, f"{model.model}:latest", "default"):
        expect(client.show(name).details == shown.details, name)


@check
def an_empty_prompt_loads_and_unloads(client):
    expect(client.generate(model="default", keep_alive="5m").done_reason == "load", "another reason")
    expect(len(client.ps().models) == 1, client.ps())
    expect(client.generate(model="default", keep_alive=0).done_reason == "unload", "another reason")
    expect(len(client.ps().models) == 0, client.ps())
    expect(chat(client, FRANCE[0]).message.content == FRANCE[1], "another answer")


@check
def errors_are_told_with_status_and_text(client):
    nope = lambda: client.chat(model="nope", messages=user("Hi"))
    refused(404, 'there is no model "nope"', nope)
    refused(404, 'there is no model "nope"', lambda: list(client.chat(model="nope", messages=user("Hi"), stream=True)))
    refused(404, 'there is no model "nope"', lambda: client.show("nope"))
    refused(400, "options.temperature", lambda: client.chat(model="default", messages=user("Hi"), options={"temperature": 3}))
    refused(400, "options.num_ctx", lambda: client.generate(model="default", prompt="Hi", options={"num_ctx": 1 << 20}))
    refused(400, "suffix", lambda: client.generate(model="default", prompt="Hi", suffix="x"))
    refused(400, "think", lambda: client.chat(model="default", messages=user("Hi"), think=True))
    refused(400, "the prompt has", lambda: client.chat(model="default", messages=user("word " * 5000)))
    refused(400, "models are managed", lambda: client.pull("nope"))
    refused(400, "models are managed", lambda: client.delete("default"))


@check
def a_stream_that_is_closed_early_leaves_the_server_well(client):
    stream = chat(client, "Tell me a story about a fox named Pip.", stream=True)
    next(stream)
    stream.close()
    expect(chat(client, FRANCE[0]).message.content == FRANCE[1], "another answer")


@check
def many_at_once_get_the_answers_that_they_would_get_alone(client):
    async def all_of_them():
        parallel = ollama.AsyncClient(host=str(client._client.base_url), timeout=ANSWER_LIMIT_S)
        ask = lambda question: parallel.chat(model="default", messages=user(question), options=GREEDY)
        return await asyncio.gather(*(ask(question) for question, _ in (FRANCE, VOLCANO) * 8))

    answers = asyncio.run(all_of_them())
    expect([answer.message.content for answer in answers] == [FRANCE[1], VOLCANO[1]] * 8, answers)


def connect(address):
    return ollama.Client(host=address, timeout=ANSWER_LIMIT_S)


if __name__ == "__main__":
    main(connect, __doc__)
