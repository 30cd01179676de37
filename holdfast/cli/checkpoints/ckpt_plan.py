"""The backup plan of a job as text: who keeps whose copies, what the plan survives, and what others would."""

from __future__ import annotations

from collections.abc import Iterable
from math import ceil
from typing import Any

import asyncpg
import click
import msgspec

from holdfast.cli.checkpoints.ckpt_sizes import size_text
from holdfast.cli.checkpoints.odds import Plan, odds_table
from holdfast.cli.connect.database import Connection
from holdfast.cli.output.kept_steps import one_in, repeated_max
from holdfast.cli.output.tables import cell, printable, render
from holdfast.cli.output.unknown_job import unknown_job

NODES_SHOWN_MAX = 32

_PLAN = """
select generation, strategy, protects, every, reason, body->'layout' as layout, body->'odds' as plans,
       coalesce(body->'kept', '{}') as kept
from ckpt.plans where key = $1
"""
_SHARDS = "select node_rank, step, bytes from ckpt.shards where job = $1"


class NodeCopies(msgspec.Struct, frozen=True, kw_only=True):
    """A node and the node that keeps its copies; step and size as last reported."""

    node: str
    keeper: str | None
    step: int | None = None
    bytes: int | None = None


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    """Ranks keep one step in `every` in memory."""

    every: int = 1
    reason: str = ""


class JobPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Output of `holdfast ckpt plan --json`."""

    job: str
    generation: int
    strategy: str
    protects: str
    every: int
    reason: str
    nodes: tuple[NodeCopies, ...]
    plans: tuple[Plan, ...]
    kept: Kept = Kept()

    @property
    def repeated_max(self) -> int:
        """Steps that a restart in place may have to train again: the newest that is kept may not be whole."""
        return repeated_max(self.kept.every)

    @property
    def repeated_without_node_max(self) -> int:
        """Most steps that are repeated after the loss of a node, if only some of its steps were copied."""
        return repeated_max(ceil(self.every / self.kept.every) * self.kept.every)

    def lost_shards(self, lost: Iterable[str]) -> list[str]:
        """Return the nodes whose shards are in no memory after the loss of these nodes. Raises ClickException."""
        names = set(lost)
        if unknown := names - {it.node for it in self.nodes}:
            raise click.ClickException(
                f"{', '.join(sorted(unknown))}: not among the nodes of job {self.job}; without --lost all are listed"
            )
        return [it.node for it in self.nodes if it.node in names and (it.keeper is None or it.keeper in names)]


async def job_plan(connection: Connection, job: str) -> JobPlan:
    """Read the plan of a job. Raises ClickException if there is none."""
    row = await connection.fetchrow(_PLAN, job)
    if row is None:
        if await connection.fetchval("select true from controller.jobs where key = $1", job):
            raise click.ClickException(f"job {job} has no backup plan: it gets one with its first start")
        raise await unknown_job(connection, job)
    shards = {it["node_rank"]: it for it in await connection.fetch(_SHARDS, job)}
    return JobPlan(
        job=job,
        **{name: row[name] for name in ("generation", "strategy", "protects", "every", "reason")},
        nodes=tuple(_copies(row["layout"], shards)),
        plans=msgspec.convert(row["plans"] or [], tuple[Plan, ...]),
        kept=msgspec.convert(row["kept"], Kept),
    )


def _copies(layout: dict[str, Any], shards: dict[int, asyncpg.Record]) -> Iterable[NodeCopies]:
    nodes = layout["nodes"]
    for node_rank, keeper in enumerate(layout["keepers"]):
        there = shards.get(node_rank)
        yield NodeCopies(
            node=nodes[node_rank],
            keeper=None if keeper is None else nodes[keeper],
            step=there["step"] if there else None,
            bytes=there["bytes"] if there else None,
        )


def plan_text(plan: JobPlan) -> str:
    """Return the plan, its odds and those of other plans."""
    about = f"{plan.strategy}, {one_in(plan.every)}; {plan.reason}"
    parts = [printable(f"Job {plan.job}, generation {plan.generation}: {about}"), ""]
    if plan.kept.every > 1:
        parts += [f"{cell(plan.kept.reason)}. {_repeated(plan)}.", ""]
    parts += [_nodes_table(plan.nodes), "", _odds_table(plan)]
    if any(not it.offered for it in plan.plans):
        parts.append("* not offered by [checkpoint] backup_strategy: for comparison")
    return "\n".join(parts)


def _repeated(plan: JobPlan) -> str:
    text = f"A restart trains up to {plan.repeated_max} steps again"
    if plan.repeated_without_node_max > plan.repeated_max:
        text += f", after the loss of a node up to {plan.repeated_without_node_max}"
    return text


def lost_text(plan: JobPlan, lost: list[str]) -> str:
    """Return what the loss of these nodes at once would mean."""
    gone = plan.lost_shards(lost)
    if not gone:
        return f"every shard of job {plan.job} is left in memory without {cell(lost)}"
    return f"without {cell(lost)} the shards of {cell(gone)} are in no memory: the job continues from the disk"


def _nodes_table(nodes: tuple[NodeCopies, ...]) -> str:
    shown = nodes[:NODES_SHOWN_MAX]
    table = render(
        ["NODE", "KEEPER", "STEP", "SIZE"], [(it.node, it.keeper, it.step, size_text(it.bytes)) for it in shown]
    )
    more = len(nodes) - len(shown)
    return f"{table}\nand {more} more nodes; --json lists all" if more else table


def _odds_table(plan: JobPlan) -> str:
    if not plan.plans:
        return "The odds are not known: this plan was made by an earlier release; the job's next start computes them."
    sizes = [it.bytes for it in plan.nodes if it.bytes is not None]
    mean = sum(sizes) / len(sizes) if sizes else None
    return f"Losses that leave every shard in memory, and the memory of copies:\n{odds_table(plan.plans, mean)}"
