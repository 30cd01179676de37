"""A replay on a node: ranks of the user's own program that are no training, and say only what they computed."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec

from holdfast.events import FirstStep, Progress, ReplayResult
from holdfast.orders.node import NodeOrder
from holdfast.orders.replay import ReplaySettings
from holdfast_agent.companions.environment import RankFiles, rank_environment
from holdfast_agent.plan.actions import Emit
from holdfast_agent.plan.inputs import Observed
from holdfast_agent.plan.node_state import RankStatus
from holdfast_agent.watching.reports import RankReport, event_of
from tests.scenes.agent import JOB, START, Scene, order

FILES = RankFiles(vault=Path("/v"), ledger=Path("/l"), reports=Path("/r"), error=Path("/e"))
SETTINGS = ReplaySettings(until=58, mesh="pp=2,dp=1", of_mesh="pp=2,dp=4", round=1)


def replay_order(generation: int = 1) -> NodeOrder:
    trains = order(generation)
    assert trains.placement is not None
    placement = msgspec.structs.replace(
        trains.placement,
        job=msgspec.structs.replace(JOB, env={"HOLDFAST_REPLAY": "mine"}),
        purpose="replay",
        replay=SETTINGS,
        restore_at_most=46,
    )
    return msgspec.structs.replace(trains, placement=placement)


def test_its_ranks_have_no_vault_and_no_ledger_and_know_what_they_replay() -> None:
    ordered = replay_order()
    assert ordered.placement is not None
    environment = rank_environment({"OMP_NUM_THREADS": "8"}, ordered, ordered.placement, 1, FILES)
    assert not environment.keys() & {"HOLDFAST_VAULT", "HOLDFAST_LEDGER"}
    assert environment["HOLDFAST_RESTORE_STEP"] == "46"
    assert ReplaySettings.decode(environment["HOLDFAST_REPLAY"]) == SETTINGS
    assert (environment["OMP_NUM_THREADS"], environment["PYTHONHASHSEED"]) == ("1", "0")


def test_ranks_that_train_are_told_nothing_of_replays() -> None:
    ordered = order(1)
    assert ordered.placement is not None
    environment = rank_environment({"HOLDFAST_REPLAY": "of another"}, ordered, ordered.placement, 1, FILES)
    assert environment["HOLDFAST_REPLAY"] == ""


def test_their_steps_are_no_steps_of_the_job() -> None:
    scene = Scene()
    scene.zygote()
    scene.order(replay_order())
    scene.run()
    status = RankStatus(step=48, steps_done=2, first_step_at=START)
    actions = scene.see(Observed, statuses={0: status, 1: status}, cut_off_s=None)
    assert not [it for it in actions if isinstance(it, Emit) and isinstance(it.event, FirstStep | Progress)]


def test_what_they_computed_is_said_and_nothing_of_checkpoints() -> None:
    computed = {
        "first": 47,
        "last": 66,
        "every": 1,
        "digests": ["a", "b"],
        "digest": "b",
        "bad_step": 58,
        "took_s": 2.5,
    }
    said = event_of(report("replay_result", computed), replay_order(3), "n", START)
    assert isinstance(said, ReplayResult)
    assert (said.rank, said.generation, said.took_s) == (1, 3, 2.5)
    assert (said.replay.first, said.replay.digests, said.replay.bad_step) == (47, ("a", "b"), 58)
    saved = {"step": 50, "path": "/c", "bytes": 1, "took_s": 0.1}
    assert event_of(report("checkpoint_saved", saved), replay_order(3), "n", START) is None
    assert event_of(report("checkpoint_saved", saved), order(3), "n", START) is not None


def test_a_report_that_is_not_understood_is_passed_over() -> None:
    assert event_of(report("replay_result", {"first": "soon"}), replay_order(3), "n", START) is None
    computed = {"first": 47, "last": 47, "digest": "b"}
    assert event_of(report("replay_result", computed), replay_order(3), "n", START) is not None
    for took_s in (None, "long", [1]):
        assert event_of(report("replay_result", computed | {"took_s": took_s}), replay_order(3), "n", START) is None


def report(kind: str, fields: dict[str, object]) -> RankReport:
    line = json.dumps({"kind": kind, "at_ns": 1, "rank": 1, "generation": 3, "fields": fields})
    return msgspec.json.decode(line, type=RankReport)
