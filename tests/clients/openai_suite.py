#!/usr/bin/env python3
"""Runs the tests of the official Python client against `toko serve`.

    pip install openai==3.57.0 pytest pytest-asyncio hatchling hatch-fancy-pypi-readme
    pip download --no-deps --no-build-isolation --no-binary openai openai==3.57.0 && tar xf openai-3.57.0.tar.gz
    tests/clients/openai_suite.py target/release/toko openai-3.57.0

They are the client's tests of its own types: each call of the API, small and with every field, read loosely and
strictly. The server answers to every model name. It serves the embedded model with three tokens declared as marks of
a gap, since the tests send a suffix.

A call may fail only if it is about something that the hosted service keeps, stored answers and models of one's own, or
for one of the other reasons in the table below. Prints those that failed, each with its reason, and exits 1 if one failed
without, or if fewer passed than did before.
"""

import pathlib
import re
import struct
import subprocess
import sys
import tempfile
import xml.etree.ElementTree

from harness import Served

FILES = ["chat/test_completions.py", "test_completions.py", "test_embeddings.py", "test_models.py", "test_responses.py"]
LEAST_PASSED = 87

ANY_WAY = "test_(method|raw_response|streaming_response|path_params)"

# Why a test may fail: file, test, reason.
EXCUSES = [
    ("chat.test_completions", f"{ANY_WAY}_(retrieve|update|list|delete)", "hosted"),
    ("test_models", f"{ANY_WAY}_delete", "hosted"),
    ("test_responses", f"{ANY_WAY}_(retrieve|delete|cancel|compact)", "hosted"),
    # They name an earlier answer that the service is to have stored.
    ("test_responses", "test_method_create_with_all_params", "hosted"),
    # The client asks for base64 on its own, and then its strict reading wants numbers.
    ("test_embeddings", r"test_(method|raw_response|streaming_response)_create\[strict\]", "the client's"),
]

# Sizes of the metadata types of GGUF, by number; 8 is text, 9 an array.
SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
ALIGNMENT = 32


def with_gap_marks(model):
    """Returns a model file's bytes with three tokens declared as the marks of a gap."""
    data = model.read_bytes()
    magic, version, tensors, keys = struct.unpack_from("<4sIQQ", data)
    at = 24

    def skip(kind):
        nonlocal at
        if kind == 8:
            at += 8 + struct.unpack_from("<Q", data, at)[0]
        elif kind == 9:
            inner, count = struct.unpack_from("<IQ", data, at)
            at += 12
            for _ in range(count):
                skip(inner)
        else:
            at += SIZES[kind]

    def skip_key():
        nonlocal at
        skip(8)
        kind = struct.unpack_from("<I", data, at)[0]
        at += 4
        skip(kind)

    for _ in range(keys):
        skip_key()
    end_of_keys = at
    for _ in range(tensors):
        skip(8)
        dimensions = struct.unpack_from("<I", data, at)[0]
        at += 4 + 8 * dimensions + 4 + 8
    added = b""
    for name, token in (("fim_pre_token_id", 1000), ("fim_suf_token_id", 1001), ("fim_mid_token_id", 1002)):
        name = f"tokenizer.ggml.{name}".encode()
        added += struct.pack("<Q", len(name)) + name + struct.pack("<II", 4, token)
    head = struct.pack("<4sIQQ", magic, version, tensors, keys + 3) + data[24:end_of_keys] + added + data[end_of_keys:at]
    up = lambda offset: -(-offset // ALIGNMENT) * ALIGNMENT
    return head + bytes(up(len(head)) - len(head)) + data[up(at) :]


def run(address, suite, report):
    tests = [str(pathlib.Path("tests/api_resources") / file) for file in FILES]
    command = [sys.executable, "-m", "pytest", "-q", "-o", "addopts=", "-p", "no:cacheprovider", "--tb=line"]
    command += ["-k", "not Async", f"--junit-xml={report}", *tests]
    environment = {"TEST_API_BASE_URL": f"{address}/v1", "PATH": "/usr/bin:/bin", "PYTHONPATH": str(suite / "src")}
    ended = subprocess.run(command, cwd=suite, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if not report.exists():
        sys.exit(ended.stdout)
    return xml.etree.ElementTree.parse(report).getroot().iter("testcase")


def excuse(file, test):
    reasons = (reason for of, pattern, reason in EXCUSES if of == file and re.match(pattern, test))
    return next(reasons, None)


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    binary, suite = sys.argv[1], pathlib.Path(sys.argv[2]).resolve()
    embedded = pathlib.Path(__file__).parents[2] / "models" / "sprout-10m-q1_0.gguf"
    with tempfile.TemporaryDirectory() as folder:
        model = pathlib.Path(folder) / "model.gguf"
        model.write_bytes(with_gap_marks(embedded))
        served = Served(binary, str(model), "--alias", "*")
        try:
            cases = list(run(served.address, suite, pathlib.Path(folder) / "report.xml"))
        finally:
            served.stop()
    failed = [case for case in cases if case.find("failure") is not None or case.find("error") is not None]
    passed = len(cases) - len(failed)
    wrong = 0
    for case in failed:
        file = case.get("classname").removeprefix("tests.api_resources.").rsplit(".", 1)[0]
        reason = excuse(file, case.get("name"))
        wrong += reason is None
        problem = case.find("failure") if case.find("failure") is not None else case.find("error")
        print(f"{reason or 'FAILED'}  {file} {case.get('name')}: {problem.get('message', '')[:160]!r}")
    print(f"{passed} of {len(cases)} passed, {len(failed) - wrong} failed for a known reason, {wrong} without one")
    sys.exit(1 if wrong or passed < LEAST_PASSED else 0)


if __name__ == "__main__":
    main()
