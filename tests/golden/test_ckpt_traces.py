"""What the checkpoint coordinator decides, trace by trace (tests/golden/ckpt/*.trace).

`again` is a coordinator that was started anew on what the last one wrote. `=` says what is planned and held.
"""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from holdfast.effects import Effect
from holdfast.events import AnyEvent
from holdfast.orders.backup import BackupOrder
from holdfast.settings.checkpoint import CheckpointPolicy
from holdfast_ckpt.service import Coordinator
from holdfast_ckpt.store import CERTIFIED, PLANS, SHARDS, STEPS, TABLES
from tests.golden.trace import START, Input, event_of, play, told

TRACES = sorted((Path(__file__).parent / "ckpt").glob("*.trace"))


class Scene:
    """A coordinator and the rows that it wrote."""

    def __init__(self) -> None:
        self.policy = CheckpointPolicy()
        self.coordinator = Coordinator(self.policy)
        self.rows: dict[str, dict[str, Any]] = {table.name: {} for table in TABLES}

    def step(self, given: Input) -> list[str]:
        """Handle one input; rows that wait are written after it."""
        if given.kind in ("policy", "again"):
            if given.kind == "policy":
                self.policy = CheckpointPolicy(backup_every=int(given.fields["every"]))
            self.coordinator = Coordinator(self.policy)
            self.coordinator.load(self.rows)
            return []
        event = _event(given)
        effect = self.coordinator.on_event(event, given.at)
        self._adopt(effect)
        self._write(given.at)
        orders = [order for order in effect.orders if isinstance(order, BackupOrder)]
        return [*(told(said) for said in effect.events), *(_ordered(order) for order in orders), f"= {self._summary()}"]

    def _write(self, at: datetime) -> None:
        while rows := self.coordinator.on_time(at, None).rows:
            self._adopt(Effect(rows=rows))

    def _adopt(self, effect: Effect) -> None:
        self.coordinator.adopt(effect)
        for row in effect.rows:
            if row.row is None:
                self.rows[row.table.name].pop(row.key, None)
            else:
                self.rows[row.table.name][row.key] = row.row

    def _summary(self) -> str:
        plans = [
            f"{plan.job} generation {plan.generation} every {plan.every}" for plan in self.rows[PLANS.name].values()
        ]
        plans += [
            f"certified up to {it.step} as of generation {it.generation}" for it in self.rows[CERTIFIED.name].values()
        ]
        plans += [f"step {it.step} on the disk" for it in self.rows[STEPS.name].values()]
        held = [
            f"{key}: step {it.step} of generation {it.generation} {it.state} on {it.node} {it.keeper}"
            for key, it in sorted(self.rows[SHARDS.name].items())
        ]
        return "; ".join([*plans, *held]) or "nothing"


def _event(given: Input) -> AnyEvent:
    fields = given.fields
    nodes, without = list(given.words), fields.pop("without", "").split(",")
    nproc = int(fields.get("nproc_per_node", 1))
    first = int(fields.pop("rank", 0))
    defaults: dict[str, Any] = {
        "job": "job",
        "nodes": nodes,
        "vaults": ["" if node in without else f"10.0.0.{ord(node[-1])}:7000" for node in nodes],
        "world_size": len(nodes) * nproc,
        "nproc_per_node": nproc,
        "submitted_at": START,
        "ranks": list(range(first, first + nproc)),
        "took_s": 0.01,
        "backup_bytes": 100,
        "fetched_bytes": 100,
        "p99_s": 1.0,
        "samples": 64,
        "outcome": "completed",
        "exit_code": 0,
    }
    event: AnyEvent = event_of(given, **defaults)  # type: ignore[assignment]
    return event


def _ordered(order: BackupOrder) -> str:
    since = f" from step {order.every_from} on, until then {order.every_before}," if order.every_from else ""
    to = (
        f"every {order.every}{since} to {order.keeper.node} at {order.keeper.host}:{order.keeper.port}"
        if order.keeper
        else "nowhere"
    )
    to += f", keeps {' '.join(map(str, order.keeps))}" if order.keeps else ""
    disk = f", every {order.persist_every} to the disk" if order.persist_every else ""
    sources = f", from {' '.join(source.node for source in order.sources)}" if order.sources else ""
    ranks = f"ranks {order.ranks.start}-{order.ranks.stop - 1}"
    stays = f"; {order.certified_step} of generation {order.certified_generation} stays" if order.certified_step else ""
    stays += (
        f"; {order.complete_step} of generation {order.complete_generation} is complete" if order.complete_step else ""
    )
    stays += f"; {order.frozen_step} of generation {order.frozen_generation} is frozen" if order.frozen_step else ""
    stays += f"; {order.coming_step} is to stay" if order.coming_step is not None else ""
    stays += f"; certified up to {order.certified_up_to}" if order.certified_up_to is not None else ""
    return f"< backups of {order.node}, {order.job} generation {order.generation} {ranks}: {to}{disk}{sources}{stays}"


@pytest.mark.parametrize("path", TRACES, ids=lambda path: path.stem)
def test_trace(path: Path, request: pytest.FixtureRequest) -> None:
    play(path, Scene().step, request.config.getoption("--rewrite"))
