"""The child's side of a fork: from a copy of the zygote to a rank that runs the user's script."""

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
"""Exit code of a child that could not become a rank (EX_SOFTWARE); its log has the reason."""


def fork_child(child: Callable[[int], NoReturn]) -> int:
    """Fork and return the child's pid. `child` is called with the parent's pid and never returns."""
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    try:
        child(parent)
    finally:
        # The child must never continue the zygote's loop.
        os._exit(EXIT_SETUP_FAILED)


def become_rank(plan: RankPlan, parent: int, output: int, errors: int) -> NoReturn:
    """Turn this fork into the rank; `output` and `errors` are the write ends of its pipes."""
    _leave_zygote(parent, output, errors)
    _run(plan)


def await_plan(parent: int, output: int, errors: int, orders: int) -> NoReturn:
    """Prepare this fork, then turn it into the rank whose plan arrives on the pipe `orders`; exit if none arrives."""
    orders = _leave_zygote(parent, output, errors, orders)
    set_process_name("rank-to-be")
    rehearse()
    plan = _read_plan(orders)
    os.close(orders)
    if plan is None:
        os._exit(0)
    _run(plan)


def _read_plan(orders: int) -> RankPlan | None:
    """Return the plan; None if the pipe ends before it is complete."""
    frames = Frames(msgspec.msgpack.Decoder(RankPlan))
    while part := os.read(orders, 1 << 16):
        for plan in frames.feed(part):
            return plan
    return None


def _leave_zygote(parent: int, output: int, errors: int, keep: int | None = None) -> int:
    """Detach from the zygote; return the descriptor under which `keep` stays open."""
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
        # Reaches the rank's log, which would otherwise show no cause.
        sys.excepthook(type(error), error, error.__traceback__)
        sys.stderr.flush()
        os._exit(EXIT_SETUP_FAILED)
    trainer_rank.run(plan.script, plan.args, is_module=plan.is_module)


def take_streams(output: int, errors: int, keep: int | None = None) -> int:
    """Set stdin to /dev/null, stdout and stderr to these; close other inherited files; return `keep`'s new number."""
    null = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((null, 0), (output, 1), (errors, 2)):
        os.dup2(source, target)
    first = _FIRST_OWN_DESCRIPTOR
    if keep is not None:
        first = os.dup2(keep, first, inheritable=False) + 1
    os.closerange(first, os.sysconf("SC_OPEN_MAX"))
    # Unbuffered like `python -u`, as torchrun does.
    sys.stdin = io.TextIOWrapper(io.BufferedReader(io.FileIO(0, closefd=False)), encoding="utf-8")
    sys.stdout = sys.__stdout__ = _text_stream(1, "strict")  # type: ignore[misc]
    sys.stderr = sys.__stderr__ = _text_stream(2, "backslashreplace")  # type: ignore[misc]
    return _FIRST_OWN_DESCRIPTOR


def reset_signals() -> None:
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
    """Reset what forks share: random states, limits read at import. The heap stays frozen: collecting would copy it."""
    gc.enable()
    random.seed()
    np.random.seed()
    torch.default_generator.seed()
    threads = os.environ.get("OMP_NUM_THREADS", "1")
    if threads.isdecimal() and int(threads) > 1:
        torch.set_num_threads(int(threads))
    # PYTHONPATH is normally read when the interpreter starts.
    for entry in reversed(os.environ.get("PYTHONPATH", "").split(os.pathsep)):
        if entry and entry not in sys.path:
            sys.path.insert(0, entry)
