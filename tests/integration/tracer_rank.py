"""A process like a rank: it forks a worker that sleeps, starts a program that is no Python, and does as it is told."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time


def sleeping_worker() -> None:
    while True:
        time.sleep(60)


def say_ready() -> None:
    sys.stdout.write("ready\n")
    sys.stdout.flush()


def stands_still() -> None:
    say_ready()
    threading.Event().wait()


def computes() -> None:
    say_ready()
    while True:
        sum(range(10_000))


def main() -> None:
    if os.fork() == 0:
        sleeping_worker()
    with subprocess.Popen(["sleep", "600"]):
        {"stands": stands_still, "computes": computes}[sys.argv[1]]()


if __name__ == "__main__":
    main()
