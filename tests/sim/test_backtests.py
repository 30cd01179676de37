"""A backtest on the record of simulated histories: the same policy decides the same, to the letter, and another parts.

The record here is what was published and the controller's inbox, as Postgres would have them; crashes, repetitions and
messages out of order are in it.
"""

from __future__ import annotations

import asyncio
from typing import cast

import msgspec

from holdfast.events import AnyEvent
from holdfast_controller.backtest.costs import Costs, response_of
from holdfast_controller.backtest.inputs import Input, Seen, inputs_of
from holdfast_controller.backtest.lockstep import compare
from holdfast_controller.plan.draft import Rules
from holdfast_controller.service import Controller
from tests.sim.cluster import SimCluster
from tests.sim.test_schedules import run_schedule

SEEDS = range(40)


def rules(cluster: SimCluster) -> Rules:
    decider = cluster.controller.shell.decider
    assert isinstance(decider, Controller)
    return decider.planner.rules


def recorded(cluster: SimCluster, job: str) -> list[Input]:
    """The inputs of a job, as the record of this history has them."""
    inbox = {id: at for (id, _), at in cluster.controller.store.database.inbox.items()}
    seen = [
        Seen(cast(AnyEvent, event), inbox.get(event.id))
        for event in cluster.log
        if isinstance(event, cluster.controller.handles) and event.job in (job, None)
    ]
    return inputs_of(seen, [event for event in cluster.log if event.source == "controller" and event.job == job])


def test_the_same_policy_decides_the_same_and_another_one_parts() -> None:
    decisions = partings = 0
    for seed in SEEDS:
        cluster = asyncio.run(run_schedule(seed))
        present = rules(cluster)
        impatient = msgspec.structs.replace(present, ladder=msgspec.structs.replace(present.ladder, attempts_max=1))
        for spec in cluster.specs:
            inputs = recorded(cluster, spec.name)
            found = compare(inputs, present, present)
            assert not found.unexplained, f"seed {seed}, {spec.name}: {found.unexplained[0]}"
            assert not found.partings, f"seed {seed}, {spec.name}: {found.partings[0]}"
            assert found.reproduced == found.decisions
            decisions += found.decisions
            other = compare(inputs, present, impatient)
            assert not other.unexplained
            partings += len(other.partings)
            # It stops where the present policy restarts for the second time, and nowhere else.
            for parting in other.partings:
                assert response_of(parting.would_decide) == "job_stopping", f"seed {seed}: {parting}"
                assert response_of(parting.decided) != "job_stopping"
                assert Costs([event for given in inputs for event in given.decided]).of(parting).recorded_machines >= 0
    assert decisions > 200 and partings > 10, f"{decisions} decisions and {partings} partings show too little"
