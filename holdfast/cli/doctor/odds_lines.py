"""The share of losses of machines that each job's memory survives, as text. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.cli.checkpoints.odds import in_use_and_better, odds_table
from holdfast.cli.doctor.facts import Facts
from holdfast.cli.output.tables import printable

JOBS_SHOWN_MAX = 10


def odds_lines(facts: Facts) -> Iterator[str]:
    """Return a table for each job on several machines that keeps something in memory: its plan, and the plans under
    which more would survive."""
    known = facts.database.odds if facts.database else ()
    jobs = [job for job in known if job.is_kept and job.one_machine.losses > 1]
    for job in jobs[:JOBS_SHOWN_MAX]:
        yield f"\nLosses that leave every shard of {printable(job.job)} in memory, and plans that would survive more:"
        yield odds_table(in_use_and_better(job.plans))
        if job.kept_every > 1:
            yield f"Its ranks keep one step in {job.kept_every}: `holdfast ckpt plan {printable(job.job)}` says why"
    if len(jobs) > JOBS_SHOWN_MAX:
        yield f"\nand {len(jobs) - JOBS_SHOWN_MAX} more jobs: `holdfast ckpt plan JOB`"
