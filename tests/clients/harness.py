"""What the client scripts share: a list of checks, a server to run them against, and the report.

Each script registers functions with `check`; the name of one is the sentence that is printed.
"""

import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import traceback

# Bounds against hanging only; nothing here depends on speed.
ANSWER_LIMIT_S = 120
SHUTDOWN_LIMIT_S = 60

# Greedy answers of the embedded model that another engine gives as well (models/golden.json).
FRANCE = ("What is the capital of France?", "Paris is the capital of France.")
VOLCANO = ("What is a volcano?", "A volcano is a mountain that can throw out hot rock and fire.")

CHECKS = []


def check(function):
    """Registers a check; its name is the sentence that is printed."""
    CHECKS.append(function)
    return function


def user(text):
    return [{"role": "user", "content": text}]


def expect(condition, seen):
    if not condition:
        raise AssertionError(f"saw {seen!r}")


class Served:
    """A server that this script started."""

    def __init__(self, binary, *arguments):
        command = [binary, "serve", "--port", "0", *arguments]
        # Whoever runs the tests keeps their own policy.
        self.home = tempfile.TemporaryDirectory()
        environment = {**os.environ, "TOKO_HOME": self.home.name, "XDG_RUNTIME_DIR": self.home.name}
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
        self.said = []
        self.address = None
        listening = threading.Event()

        def read():
            for line in self.process.stderr:
                self.said.append(line)
                found = re.search(r"http://\S+:\d+", line)
                if found and not self.address:
                    self.address = found.group()
                    listening.set()
            listening.set()

        self.reader = threading.Thread(target=read, daemon=True)
        self.reader.start()
        listening.wait(ANSWER_LIMIT_S)
        if not self.address:
            self.process.kill()
            sys.exit("the server printed no address:\n" + "".join(self.said))

    def stop(self):
        """Ends the server and says whether it ended as it should."""
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(SHUTDOWN_LIMIT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return "not within a minute"


def run(client):
    """Runs all checks and returns how many failed."""
    failed = 0
    for function in CHECKS:
        name = function.__name__.replace("_", " ")
        try:
            function(client)
        except Exception:
            failed += 1
            print(f"FAILED  {name}", flush=True)
            traceback.print_exc()
        else:
            print(f"ok  {name}", flush=True)
    return failed


def main(connect, usage):
    """Runs all checks with the client that `connect` makes for an address, and exits with the outcome."""
    if len(sys.argv) != 2:
        sys.exit(usage)
    target = sys.argv[1]
    if target.startswith("http"):
        failed = run(connect(target.rstrip("/")))
    else:
        served = Served(target)
        try:
            failed = run(connect(served.address))
        finally:
            code = served.stop()
        if code == 0:
            print("ok  the server ends with code 0 when it is asked to")
        else:
            failed += 1
            print(f"FAILED  the server ended with {code}:\n" + "".join(served.said))
    print(f"{failed} failed" if failed else "all passed")
    sys.exit(1 if failed else 0)
