"""The zygote's command to start the ranks of an order."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from holdfast.code.relocation import relocate
from holdfast.events.parts.launch import STREAMS
from holdfast.node.machine import Machine
from holdfast.node.users.job_user import JobUser
from holdfast.orders.node import NodeOrder, Placement
from holdfast_agent.companions.code_place import CodePlace
from holdfast_agent.companions.environment import attempt, rank_environment
from holdfast_agent.companions.interpreter import Interpreter, interpreter_of, library, warm_kind
from holdfast_agent.companions.processors import read_processors
from holdfast_agent.files.directories import Directories
from holdfast_agent.plan.devices.binding import CannotBind, Processors, bound_to
from holdfast_agent.zygote.wire import ERROR_COPY, RankPlan, StartRanks

MACHINE = Machine()


def script_of(placement: Placement, code_place: Callable[[str, str], Path]) -> str:
    """Return the script that ranks run, in its version's directory as far as there is one; a module's name."""
    job, version = placement.job, placement.code_version
    if not version or job.is_module or not (copy := code_place(job.name, version)).is_dir():
        return job.script
    return relocate(job.script, job.code_root, str(copy), job.cwd)


def log_directory(placement: Placement) -> str:
    """Return the directory for files of the ranks' output on this node; "" if the job wants none."""
    job = placement.job
    if not job.launch.log_dir or placement.purpose != "train":
        return ""
    return job.launch.log_dir + (f"_{placement.node_rank}" if job.nnodes > 1 else "")


def _output(order: NodeOrder, placement: Placement, rank: int) -> dict[str, Any]:
    """Return where the output of a rank goes besides its log."""
    launch, local_rank = placement.job.launch, rank - placement.ranks.start
    if placement.purpose != "train":
        return {}
    directory, wanted = log_directory(placement), launch.copied(local_rank)
    folder = Path(directory) / f"attempt_{attempt(order)}" / str(local_rank)
    names = {"out": "stdout.log", "err": "stderr.log"}
    copies = {stream: str(folder / name) for stream, name in names.items() if directory and wanted & STREAMS[stream]}
    if directory:
        copies[ERROR_COPY] = str(folder / "error.json")
    return {"shown": int(launch.shown(rank, local_rank)), "copies": copies}


def _processors(placement: Placement, machine: Machine) -> Processors | str:
    """Return what ranks may be bound to; why they cannot be, or ""."""
    if not placement.job.launch.numa_binding or placement.purpose == "checks":
        return ""
    try:
        return read_processors(machine)
    except (OSError, ValueError) as error:
        return f"/sys does not list the processors near its GPU: {error}"


def _bound(placement: Placement, environment: Mapping[str, str], machine: Processors | str) -> tuple[int, ...] | str:
    """Return the processors of a rank; why it is not bound, or ""."""
    if isinstance(machine, str):
        return machine
    visible = environment.get("CUDA_VISIBLE_DEVICES", environment.get("HIP_VISIBLE_DEVICES"))
    try:
        cpus = bound_to(placement.job.launch.numa_binding, int(environment["LOCAL_RANK"]), visible, machine)
    except CannotBind as error:
        return str(error)
    return tuple(sorted(cpus))


def start_command(
    order: NodeOrder, directories: Directories, code: CodePlace, user: JobUser | None, machine: Machine = MACHINE
) -> StartRanks:
    """Return the command. `code`: where ranks run their version; the working directory is the submitter's."""
    placement = order.placement
    assert placement is not None
    job, purpose = placement.job, placement.purpose
    # Checks run as the agent's user: from its own packages, and not from where the job's author may put others.
    is_jobs = purpose != "checks"
    script = job.script
    if code.moved_to is not None and not job.is_module:
        script = relocate(job.script, job.code_root, str(code.moved_to), job.cwd)
    if purpose != "train":
        directories.begin_checks(job.name, order.fence, purpose)
    plans = []
    # Decoded once: `os.environ` decodes each name and value at every look.
    base = dict(os.environ)
    python = Interpreter(job.start, "", ())
    if is_jobs and not job.launch.no_python:
        python = interpreter_of(job, base, order.node)
    packages = str(library(directories.root)) if python.path else ""
    variables = {name: job.env.get(name, value) for name, value in (user.variables() if user else {}).items()}
    processors = _processors(placement, machine)
    for rank in placement.ranks:
        files = directories.rank_files(job.name, order.fence, rank, purpose)
        stem = directories.log_stem(job.name, rank)
        if purpose != "train":
            stem = directories.checks_log_stem(job.name, order.fence, rank, purpose)
        environment = rank_environment(base, order, placement, rank, files, code.moved_to) | variables
        bound = _bound(placement, environment, processors)
        # Once on each node.
        notes = list(python.notes) if rank == placement.ranks.start else []
        if isinstance(bound, str) and bound:
            notes.append(f"--numa-binding: not bound: {bound}")
        plans.append(
            RankPlan(
                rank=rank,
                local_rank=rank - placement.ranks.start,
                environment=environment,
                cwd=job.cwd if is_jobs else "/",
                script=script,
                args=job.args,
                is_module=job.is_module,
                start=python.start,
                log_stem=str(stem),
                error_file=str(files.error),
                user=user,
                python=python.path,
                library=packages,
                cover=code.cover,
                warm=warm_kind(job, python, environment, user, code.cover),
                cpus=bound if isinstance(bound, tuple) else (),
                notes=tuple(notes),
                is_program=job.launch.no_python and is_jobs,
                **_output(order, placement, rank),
            )
        )
    return StartRanks(fence=order.fence, order=order.encode(), ranks=tuple(plans))
