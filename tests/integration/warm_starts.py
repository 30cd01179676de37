"""Ranks as a zygote starts them: forked, one after the other, from a process that has torch. For tests of one rank.

Each line on stdin is a `Start` in JSON, each line on stdout the exit code of its rank.
"""

from __future__ import annotations

import os
import sys
from typing import NoReturn

import msgspec

from holdfast.daemon.logs import log_to_stderr
from holdfast.node import kernel
from holdfast.trainer import rank
from holdfast_agent.zygote.__main__ import make_ready
from holdfast_agent.zygote.preload import hold_threads


class Start(msgspec.Struct, frozen=True, kw_only=True):
    """A rank, with the file that its output and errors go to."""

    environment: dict[str, str]
    directory: str
    script: str
    arguments: list[str]
    output: str


def become(start: Start, parent: int) -> NoReturn:
    """Be the rank from here on."""
    kernel.die_with_parent(parent)
    output = os.open(start.output, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(output, stream)
    os.environ.clear()
    os.environ |= start.environment
    os.chdir(start.directory)
    rank.main([start.script, *start.arguments])


if __name__ == "__main__":
    log_to_stderr("warm starts")
    hold_threads()
    make_ready()
    for line in sys.stdin.buffer:
        asked, us = msgspec.json.decode(line, type=Start), os.getpid()
        pid = os.fork()
        if pid == 0:
            become(asked, us)
        _, status = os.waitpid(pid, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)
