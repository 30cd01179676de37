"""The zygote's command to start the ranks of an order."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from holdfast.code.relocation import relocate
from holdfast.orders.node import NodeOrder
from holdfast_agent.companions.environment import rank_environment
from holdfast_agent.files.directories import Directories
from holdfast_agent.zygote.wire import RankPlan, StartRanks


def start_command(order: NodeOrder, directories: Directories, code_place: Callable[[str, str], Path]) -> StartRanks:
    """Return the command. `code_place` returns a code version's directory; the working directory is the submitter's."""
    placement = order.placement
    assert placement is not None
    job, version = placement.job, placement.code_version
    code = code_place(job.name, version) if version else None
    script = relocate(job.script, job.code_root, str(code), job.cwd) if code and not job.is_module else job.script
    purpose = placement.purpose
    if purpose != "train":
        directories.begin_checks(job.name, order.fence, purpose)
    # Checks are programs of Holdfast, and test devices that only root may open.
    user = directories.user if purpose != "checks" else None
    if user is not None:
        directories.begin_job(Path(job.directory))
    plans = []
    variables = {name: job.env.get(name, value) for name, value in (user.variables() if user else {}).items()}
    for rank in placement.ranks:
        files = directories.rank_files(job.name, order.fence, rank)
        stem = directories.log_stem(job.name, rank)
        if purpose != "train":
            stem = directories.checks_log_stem(job.name, order.fence, rank, purpose)
        plans.append(
            RankPlan(
                rank=rank,
                local_rank=rank - placement.ranks.start,
                environment=rank_environment(os.environ, order, placement, rank, files, code) | variables,
                cwd=job.cwd,
                script=script,
                args=job.args,
                is_module=job.is_module,
                start=job.start,
                log_stem=str(stem),
                error_file=str(files.error),
                user=user,
            )
        )
    return StartRanks(fence=order.fence, order=order.encode(), ranks=tuple(plans))
