"""From a fork of the zygote to a rank: the child's side, from the first instruction to the user's script."""

from __future__ import annotations

import gc
import io
import os
import random
import signal
import sys
from collections.abc import Callable
from typing import NoReturn

import msgspec
import numpy as np
import torch

from holdfast.node.frames import Frames
from holdfast.node.kernel import die_with_parent, set_process_name
from holdfast.trainer import rank as trainer_rank
from holdfast_agent.zygote.preload import rehearse
from holdfast_agent.zygote.wire import RankPlan

_FIRST_OWN_DESCRIPTOR = 3
EXIT_SETUP_FAILED = 70
"""Exit code of a child that could not become a rank (EX_SOFTWARE); its log says why."""


def fork_child(child: Callable[[int], NoReturn]) -> int:
    """Fork; `child` gets the parent's pid and never returns. Gives the child's pid."""
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    try:
        child(parent)
    finally:
        # Whatever happened, the child must not go on in the zygote's loop.
        os._exit(EXIT_SETUP_FAILED)


def become_rank(plan: RankPlan, parent: int, output: int, errors: int) -> NoReturn:
    """Turn this fresh fork into the rank; `output` and `errors` are the write ends of its pipes."""
    _leave_zygote(parent, output, errors)
    _run(plan)


def await_plan(parent: int, output: int, errors: int, orders: int) -> NoReturn:
    """Get this fresh fork ready, and turn it into the rank whose plan comes on the pipe `orders`; end if none comes."""
    orders = _leave_zygote(parent, output, errors, orders)
    set_process_name("rank-to-be")
    rehearse()
    plan = _read_plan(orders)
    os.close(orders)
    if plan is None:
        os._exit(0)
    _run(plan)


def _read_plan(orders: int) -> RankPlan | None:
    """The plan, or None if the pipe ends before it is whole."""
    frames = Frames(msgspec.msgpack.Decoder(RankPlan))
    while part := os.read(orders, 1 << 16):
        for plan in frames.feed(part):
            return plan
    return None


def _leave_zygote(parent: int, output: int, errors: int, keep: int | None = None) -> int:
    """Become a process of its own; returns the descriptor under which `keep` stays open."""
    die_with_parent(parent)
    os.setsid()
    kept = take_streams(output, errors, keep)
    reset_signals()
    return kept


def _run(plan: RankPlan) -> NoReturn:
    set_process_name(f"rank-{plan.rank}")
    try:
        os.environ.clear()
        os.environ.update(plan.environment)
        os.chdir(plan.cwd)
        if plan.start == "exec":
            _execute(plan)
        _freshen()
    except BaseException as error:  # noqa: BLE001 - a child of the zygote ends here whatever happened
        # Reaches the rank's log: without it the rank would be gone without a word.
        sys.excepthook(type(error), error, error.__traceback__)
        sys.stderr.flush()
        os._exit(EXIT_SETUP_FAILED)
    trainer_rank.run(plan.script, plan.args, is_module=plan.is_module)


def take_streams(output: int, errors: int, keep: int | None = None) -> int:
    """Null for input, these two for output, and nothing else of the zygote's open files but `keep`.

    Returns the number that `keep` has from now on.
    """
    null = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((null, 0), (output, 1), (errors, 2)):
        os.dup2(source, target)
    first = _FIRST_OWN_DESCRIPTOR
    if keep is not None:
        first = os.dup2(keep, first, inheritable=False) + 1
    os.closerange(first, os.sysconf("SC_OPEN_MAX"))
    # As under `python -u`, which torchrun uses: what is printed is out at once.
    sys.stdin = io.TextIOWrapper(io.BufferedReader(io.FileIO(0, closefd=False)), encoding="utf-8")
    sys.stdout = sys.__stdout__ = _text_stream(1, "strict")  # type: ignore[misc]
    sys.stderr = sys.__stderr__ = _text_stream(2, "backslashreplace")  # type: ignore[misc]
    return _FIRST_OWN_DESCRIPTOR


def reset_signals() -> None:
    """The dispositions of a fresh process."""
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _text_stream(descriptor: int, errors: str) -> io.TextIOWrapper:
    raw = io.FileIO(descriptor, "w", closefd=False)
    return io.TextIOWrapper(raw, encoding="utf-8", errors=errors, write_through=True)


def _execute(plan: RankPlan) -> NoReturn:
    module = ("-m",) if plan.is_module else ()
    command = (sys.executable, "-u", "-P", "-m", "holdfast.trainer.rank", *module, plan.script, *plan.args)
    os.execve(sys.executable, command, plan.environment)


def _freshen() -> None:
    """Undo what a fork shares and fresh processes would not: random states, limits read at import.

    The heap stays frozen: a collection that walked it would copy every page of it.
    """
    gc.enable()
    random.seed()
    np.random.seed()
    torch.default_generator.seed()
    threads = os.environ.get("OMP_NUM_THREADS", "1")
    if threads.isdecimal() and int(threads) > 1:
        torch.set_num_threads(int(threads))
    # PYTHONPATH is read when an interpreter starts, which this one did long ago.
    for entry in reversed(os.environ.get("PYTHONPATH", "").split(os.pathsep)):
        if entry and entry not in sys.path:
            sys.path.insert(0, entry)
