"""A script's ranks, forked from one process that has torch: ``warm_ranks.py [--stdout FD]... RANKS SCRIPT ARGUMENT...``

For tests of what ranks do, and not of who launches them: most ranks of tests do less than importing torch takes.
"""

from __future__ import annotations

import argparse
import gc
import os
import runpy
import signal
import socket
import sys
import traceback
from pathlib import Path
from typing import NoReturn

from holdfast.node import kernel
from holdfast_agent.zygote import preload

HOST = "127.0.0.1"


def launch(count: int, script: str, arguments: list[str], outputs: list[int]) -> int:
    """Run them all; the exit code of the first that failed, whose partners are then killed."""
    with _reserved_port() as reserved:
        os.environ |= {"MASTER_ADDR": HOST, "MASTER_PORT": str(reserved.getsockname()[1]), "WORLD_SIZE": str(count)}
        os.environ["LOCAL_WORLD_SIZE"] = str(count)
        if count > 1:
            preload.hold_threads()
            preload.preload()
            gc.collect()
            gc.freeze()
        ranks = {_fork(rank, script, arguments, outputs) for rank in range(count)}
        failed = 0
        while ranks:
            pid, status = os.wait()
            ranks.discard(pid)
            code = os.waitstatus_to_exitcode(status)
            if code and not failed:
                failed = code
                for other in ranks:
                    os.kill(other, signal.SIGKILL)
    return failed


def _reserved_port() -> socket.socket:
    """Bound and not listening: rank 0's store may listen beside it, and nobody else is given the port.

    It is bound at all addresses, as the store is: of one address, others may have the same port of another.
    """
    dual = socket.has_dualstack_ipv6()
    reserved = socket.socket(socket.AF_INET6 if dual else socket.AF_INET)
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if dual:
        reserved.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    reserved.bind(("", 0))
    return reserved


def _fork(rank: int, script: str, arguments: list[str], outputs: list[int]) -> int:
    sys.stdout.flush()
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        kernel.die_with_parent(parent)
        if outputs:
            os.dup2(outputs[rank], sys.stdout.fileno())
        os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
        sys.argv = [script, *arguments]
        sys.path[0] = str(Path(script).parent)
        _run(script)
    return pid


def _run(script: str) -> NoReturn:
    code = 0
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # noqa: BLE001 - whatever it is ends the rank
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    # An interpreter that ends while gloo's threads do may call std::terminate.
    os._exit(code)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--stdout", type=int, action="append", default=[], help="a descriptor for each rank")
    parser.add_argument("ranks", type=int)
    parser.add_argument("script")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    asked = parser.parse_args()
    sys.exit(abs(launch(asked.ranks, asked.script, asked.arguments, asked.stdout)))
