#!/usr/bin/env python3
"""Sends what /openapi.json allows, and what it does not, to `toko serve`.

    pip install schemathesis==4.32.5
    tests/clients/openapi_fuzz.py target/release/toko

Starts the server on the embedded model and lets schemathesis make requests from the document: no answer may be a
500, have a status, a content type or a shape that the document does not name, or be a success where the request
breaks the document. Models are unloaded in a run of its own, since who asks for one that goes gets a 503. Takes at most
about a minute and a half.
"""

import pathlib
import subprocess
import sys

from harness import Served

CHECKS = [
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
    "unsupported_method",
    "allow_header_conformance",
    "negative_data_rejection",
]


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    schemathesis = pathlib.Path(sys.executable).with_name("schemathesis")
    served = Served(sys.argv[1], "--ctx", "256", "--queue-limit", "1000", "--drain-timeout", "5")
    try:
        command = [schemathesis, "run", f"{served.address}/openapi.json", "--checks", ",".join(CHECKS)]
        command += ["--phases", "examples,coverage,fuzzing", "--max-examples", "30", "--seed", "1", "--no-color"]
        command += ["--generation-database", "none", "--continue-on-failure", "--request-timeout", "30"]
        # The stream of changes ends with the server.
        answers = ["--exclude-path-regex", "/models/sse|unload", "--max-time", "70"]
        unloads = ["--include-path-regex", "unload", "--max-time", "10"]
        failed = [run for run in (answers, unloads) if subprocess.run([*command, *run]).returncode != 0]
    finally:
        code = served.stop()
    if code != 0:
        sys.exit(f"the server ended with {code}:\n" + "".join(served.said))
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
