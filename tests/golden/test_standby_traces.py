"""Decisions of the standby service, trace by trace (tests/golden/standby/*.trace)."""

from datetime import datetime
from pathlib import Path

import pytest

from holdfast.requests import ReleaseNode
from holdfast.settings.pool import PoolPolicy
from holdfast.settings.timeouts import Timeouts
from holdfast_standby.plan import InventoryPlanner
from holdfast_standby.state import Inventory, NodeLiveness
from tests.golden.trace import START, Input, event_of, play, told

TRACES = sorted((Path(__file__).parent / "standby").glob("*.trace"))


@pytest.mark.parametrize("path", TRACES, ids=lambda path: path.stem)
def test_trace(path: Path, request: pytest.FixtureRequest) -> None:
    inventory = Inventory()
    planner = InventoryPlanner(Timeouts(), PoolPolicy())
    last: dict[str, datetime] = {}
    listening_since: datetime | None = START

    def step(given: Input) -> list[str]:
        nonlocal inventory, planner, listening_since
        if given.kind == "pool":
            planner = InventoryPlanner(Timeouts(), PoolPolicy(size=int(given.fields["size"])))
            return []
        if given.kind == "heard":
            last.update(dict.fromkeys(given.words, given.at))
            return []
        if given.kind in ("deaf", "listening"):
            listening_since = given.at if given.kind == "listening" else None
            return []
        liveness = NodeLiveness(last=dict(last), listening_since=listening_since)
        if given.kind == "time":
            outcome = planner.time(inventory, liveness, given.at)
        elif given.kind == "release":
            outcome = planner.release(
                inventory, ReleaseNode(id=given.id, asked_by="ada", node=given.words[0]), liveness, given.at
            )
        else:
            defaults = {"instance": "i1", "job": given.fields.get("job"), "blocked_for_s": 3600.0}
            outcome = planner.event(inventory, event_of(given, **defaults), given.at)
        inventory = outcome.inventory
        if outcome.refusal:
            return [f"= refused: {outcome.refusal}"]
        nodes = " ".join(f"{node.id}:{node.state}" for node in inventory.nodes.values())
        claims = " ".join(
            f"{claim.job} waits for {claim.waits_for}" for claim in inventory.claims.values() if not claim.over_at
        )
        note = [f"= answered: {outcome.note}"] if outcome.note else []
        return [*(told(event) for event in outcome.events), *note, f"= {nodes}{'; ' + claims if claims else ''}"]

    play(path, step, bool(request.config.getoption("--rewrite")))
