"""The coordinator's rows: steps on disk, plans and certified steps of jobs, and node ranks' shards in memory."""

from __future__ import annotations

from typing import Any

from holdfast.store import Table
from holdfast_ckpt.plan.records import CataloguedStep, CertifiedSteps, HeldShards, JobBackups


def _step_columns(entry: CataloguedStep) -> dict[str, Any]:
    return {
        "job": entry.job,
        "step": entry.step,
        "path": entry.path,
        "bytes": entry.checkpoint_bytes,
        "saved_at": entry.saved_at,
    }


def _plan_columns(plan: JobBackups) -> dict[str, Any]:
    return {
        "generation": plan.generation,
        "nnodes": len(plan.layout.nodes),
        "strategy": plan.strategy,
        "protects": plan.protects,
        "every": plan.every,
        "reason": plan.reason,
        "held_step": plan.held.step if plan.held else None,
        "held_generation": plan.held.generation if plan.held else None,
        "coming_step": plan.coming,
        "planned_at": plan.planned_at,
    }


def _shard_columns(held: HeldShards) -> dict[str, Any]:
    return {
        "job": held.job,
        "node_rank": held.node_rank,
        "node": held.node,
        "keeper": held.keeper,
        "step": held.step,
        "generation": held.generation,
        "bytes": held.shard_bytes,
        "state": str(held.state),
        "reported_at": held.reported_at,
    }


def _certified_columns(certified: CertifiedSteps) -> dict[str, Any]:
    return {"generation": certified.generation, "step": certified.step, "certified_at": certified.certified_at}


STEPS = Table(name="steps", row_type=CataloguedStep, columns=_step_columns)
PLANS = Table(name="plans", row_type=JobBackups, columns=_plan_columns)
SHARDS = Table(name="shards", row_type=HeldShards, columns=_shard_columns)
CERTIFIED = Table(name="certified", row_type=CertifiedSteps, columns=_certified_columns)
TABLES: tuple[Table[Any], ...] = (STEPS, PLANS, SHARDS, CERTIFIED)


def key_of(job: str, number: int) -> str:
    """Return the key of a step, or of a node rank's shards. A later generation overwrites the row of an earlier one."""
    return f"{job}/{number}"


def parts_of(key: str) -> tuple[str, int]:
    job, _, number = key.rpartition("/")
    return job, int(number)
