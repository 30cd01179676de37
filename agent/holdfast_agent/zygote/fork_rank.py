"""The child's side of a fork: from a copy of the zygote to a rank that runs the user's script."""

from __future__ import annotations

import gc
import os
import random
import socket
import sys
import time
from pathlib import Path
from typing import NoReturn

import msgspec
import numpy as np
import torch

from holdfast.code.cover import mount_over
from holdfast.code.relocation import DIRECTORY_VARIABLE, ROOT_VARIABLE, relocate
from holdfast.node.affinity.bound import bind
from holdfast.node.forks import EXIT_SETUP_FAILED, take_streams
from holdfast.node.frames import receive
from holdfast.node.kernel import die_with_parent, set_process_name
from holdfast.node.reach import closed_part
from holdfast.node.users.job_user import JobUser
from holdfast.node.users.user_rights import JobUserRefused, become
from holdfast.node.vault import userfaultfd
from holdfast.trainer import rank as trainer_rank
from holdfast.trainer.ahead.context import context_works, hold_context
from holdfast_agent.zygote.elsewhere.bootstrap import start_program
from holdfast_agent.zygote.plan_file import read_plan
from holdfast_agent.zygote.preload import rehearse
from holdfast_agent.zygote.wire import Cover, MakeContext, RankPlan, RankSlot


def become_rank(slot: RankSlot, plans: int, parent: int, output: int, errors: int) -> NoReturn:
    """Turn this fork into the rank; `output` and `errors` are the write ends of its pipes."""
    plans = _leave_zygote(parent, output, errors, plans)
    _reseed()
    _run(slot, plans, parent)


def await_plan(parent: int, output: int, errors: int, orders: int) -> NoReturn:
    """Prepare this fork, then turn it into the rank that arrives on the socket `orders`."""
    orders = _leave_zygote(parent, output, errors, orders)
    set_process_name("rank-to-be")
    rehearse()
    _reseed()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, fileno=orders) as link:
        # Raises WireError when the zygote ends: no process waits for this one then.
        slot, plans = receive(link, msgspec.msgpack.Decoder(RankSlot))
    assert plans is not None
    _run(slot, plans, parent)


def await_plan_as(slot: RankSlot, plans: int, parent: int, output: int, errors: int, orders: int) -> NoReturn:
    """Turn this fork into the interpreter of such a rank, which then awaits the plan of one on the socket `orders`."""
    plan = read_plan(plans, slot)
    orders = _leave_zygote(parent, output, errors, orders)
    set_process_name("rank-to-be")
    _enter(plan, parent)
    _execute_warm(plan, orders)


def await_plan_on_device(
    slot: RankSlot, plans: int, wanted: MakeContext, parent: int, output: int, errors: int, orders: int
) -> NoReturn:
    """Give this fork the context of such a rank, then turn it into the one that arrives on the socket `orders`."""
    plan = read_plan(plans, slot)
    orders = _leave_zygote(parent, output, errors, orders)
    set_process_name("rank-to-be")
    if slot.start == "fork":
        # Before it has another user: the files of the library may be closed to that one.
        rehearse()
        _reseed()
    os.environ.clear()
    os.environ.update(plan.environment)
    bind(plan.cpus)
    _enter(plan, parent)
    if slot.start != "fork":
        _execute_warm(plan, orders, wanted.device, str(wanted.floor_bytes))
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, fileno=orders) as link:
        hold_context(link, wanted.device, wanted.floor_bytes)
        slot, new_plans = receive(link, msgspec.msgpack.Decoder(RankSlot))
    assert new_plans is not None
    _run(slot, new_plans, parent, device=wanted.device)


def _enter(plan: RankPlan, parent: int) -> None:
    """Become the rank's user, in its working directory."""
    if plan.user is not None:
        userfaultfd.keep_right()
        become(plan.user, parent)
    os.chdir(plan.cwd)


def _execute_warm(plan: RankPlan, orders: int, *context: str) -> NoReturn:
    """Become an interpreter of the rank's that awaits the plan of one, with a `context` or without."""
    os.set_inheritable(orders, True)
    python, *command = start_program(plan, "holdfast_agent.zygote.elsewhere.warm_rank", (str(orders), *context))
    os.execve(python, (python, *command), plan.environment | userfaultfd.pass_right_on())


def _leave_zygote(parent: int, output: int, errors: int, keep: int) -> int:
    """Detach from the zygote; return the descriptor under which `keep` stays open."""
    die_with_parent(parent)
    os.setsid()
    return take_streams(output, errors, keep)


def _run(slot: RankSlot, plans: int, parent: int, device: str = "") -> NoReturn:
    """Become the rank. With a `device` this fork has its user and a context there."""
    set_process_name(f"rank-{slot.rank}")
    try:
        # Here and no earlier: the zygote must not know it.
        plan = read_plan(plans, slot)
        os.close(plans)
        os.environ.clear()
        os.environ.update(plan.environment)
        for note in plan.notes:
            sys.stderr.write(f"holdfast: {note}\n")
        bind(plan.cpus)
        if plan.cover is not None:
            plan = _covered(plan, plan.cover)
        if plan.user is not None:
            if not device:
                userfaultfd.keep_right()
                become(plan.user, parent)
            _require_reachable(plan, plan.user)
        os.chdir(plan.cwd)
        if plan.is_program:
            os.execvpe(plan.script, (plan.script, *plan.args), plan.environment)
        if plan.start == "exec" or (device and not context_works(device)):
            _execute(plan)
        _apply_environment()
    except JobUserRefused as error:
        sys.stderr.write(f"holdfast: {error}\n")
        os._exit(EXIT_SETUP_FAILED)
    except BaseException as error:  # noqa: BLE001 - a child of the zygote ends here whatever happened
        # Reaches the rank's log, which would otherwise show no cause.
        sys.excepthook(type(error), error, error.__traceback__)
        sys.stderr.flush()
        os._exit(EXIT_SETUP_FAILED)
    trainer_rank.run(plan.script, plan.args, is_module=plan.is_module)


def _require_reachable(plan: RankPlan, user: JobUser) -> None:
    """Raise JobUserRefused if the rank's user cannot reach what the rank needs; warn of what it may need."""
    needed = {"working directory": (plan.cwd, os.X_OK)} | (
        {} if plan.is_module else {"script": (plan.script, os.X_OK if plan.is_program else os.R_OK)}
    )
    if plan.start == "exec":
        needed["Python"] = (plan.python or sys.executable, os.X_OK)
    for what, (path, mode) in needed.items():
        if (closed := closed_part(Path(path), mode)) is not None:
            raise JobUserRefused(
                f"the user {user.name}, that ranks run as ([jobs] run_as), cannot reach the {what} {path}: {closed} is "
                "closed to it (docs/security.md)"
            )
    if plan.local_rank:
        return
    wished = {"Python's library": (os.__file__, os.R_OK), "PyTorch": (str(torch.__file__), os.R_OK)}
    if os.path.isdir(directory := plan.environment.get("HOLDFAST_JOB_DIR", "")):
        wished["job's directory, for checkpoints,"] = (directory, os.W_OK)
    for what, (path, mode) in wished.items():
        if (closed := closed_part(Path(path), mode)) is not None:
            sys.stderr.write(f"holdfast: the user {user.name} cannot use the {what} {path}: {closed} is closed to it\n")


def _covered(plan: RankPlan, cover: Cover) -> RankPlan:
    """Mount files of the version over those of the source tree; where that fails, return a plan that runs the copy."""
    try:
        mount_over(cover.root, cover.place, cover.files)
        return plan
    except OSError as error:
        if not plan.local_rank:
            sys.stderr.write(
                f"holdfast: the script runs from a copy of its code, {cover.place}: {len(cover.files)} files differ "
                f"from those in {cover.root}, and cannot be mounted over them: {error.strerror}\n"
            )
    moved = {ROOT_VARIABLE: cover.root, DIRECTORY_VARIABLE: cover.place}
    os.environ.update(moved)
    script = plan.script if plan.is_module else relocate(plan.script, cover.root, cover.place, plan.cwd)
    return msgspec.structs.replace(plan, script=script, environment=plan.environment | moved)


def _execute(plan: RankPlan) -> NoReturn:
    arguments = (*(("-m",) if plan.is_module else ()), plan.script, *plan.args)
    python, *command = start_program(plan, "holdfast.trainer.rank", arguments)
    try:
        os.execve(python, (python, *command), plan.environment | userfaultfd.pass_right_on())
    except OSError as error:
        sys.stderr.write(f"holdfast: {python} cannot be started ({error.strerror}): name another with --python\n")
        os._exit(EXIT_SETUP_FAILED)


def _reseed() -> None:
    """Reset the random states that forks share."""
    random.seed()
    np.random.seed()
    torch.default_generator.seed()


def threads_of_torch() -> int:
    """Return the number of threads that torch takes by itself: the zygote was held to one when it was imported."""
    usable = os.sched_getaffinity(0)
    if not torch.backends.mkl.is_available():  # type: ignore[no-untyped-call]
        return len(usable)
    # MKL has a thread for each core, whatever the number of its processors.
    return len({_core(processor) for processor in usable})


def _core(processor: int) -> str:
    try:
        return Path(f"/sys/devices/system/cpu/cpu{processor}/topology/thread_siblings_list").read_text()
    except OSError:
        return str(processor)


def _apply_environment() -> None:
    """Apply variables that imports read. The zygote's heap stays frozen: collecting garbage would copy it."""
    gc.enable()
    wanted = os.environ.get("OMP_NUM_THREADS")
    threads = threads_of_torch() if wanted is None else int(wanted) if wanted.isdecimal() else 1
    if threads > 1:
        torch.set_num_threads(threads)
    if "TZ" in os.environ:
        time.tzset()
    if torch.distributed.is_available():
        torch.distributed.set_debug_level_from_env()  # type: ignore[attr-defined]
    # What the interpreter normally reads when it starts.
    sys.dont_write_bytecode = bool(os.environ.get("PYTHONDONTWRITEBYTECODE"))
    sys.pycache_prefix = os.environ.get("PYTHONPYCACHEPREFIX") or None
    if search := os.environ.get("PYTHONPATH"):
        entries = [os.path.abspath(entry) for entry in search.split(os.pathsep)]
        sys.path[:0] = [entry for entry in dict.fromkeys(entries) if entry not in sys.path]
