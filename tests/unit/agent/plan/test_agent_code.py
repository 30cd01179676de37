"""What the agent decides about code that an order names: fetched first, then the ranks are replaced."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.events import CodeNotInPlace, ProcessExited, RanksStopped
from holdfast.fresh_ids import uuid7
from holdfast.orders.base import UnreadableOrder
from holdfast.orders.node import NodeOrder
from holdfast_agent.companions.environment import RankFiles, rank_environment
from holdfast_agent.plan.actions import FetchCode, Fork, OpenStore, Stop
from holdfast_agent.plan.inputs import CodeMissing, CodeReady, StopDone, ZygoteLost
from holdfast_agent.plan.node_state import AgentState
from tests.scenes.agent import Scene, order, running

ONE, TWO = "1" * 64, "2" * 64


def coded(generation: int, version: str, **fields: object) -> NodeOrder:
    plain = order(generation, **fields)  # type: ignore[arg-type]
    assert plain.placement is not None
    return msgspec.structs.replace(plain, placement=msgspec.structs.replace(plain.placement, code_version=version))


def ready(scene: Scene, *versions: str) -> None:
    scene.see(CodeReady, code=frozenset(f"job-1/{version}" for version in versions))


def missing(scene: Scene, version: str) -> None:
    scene.see(CodeMissing, code=f"job-1/{version}", reason="the bus does not have it")


def test_ranks_are_forked_once_their_code_is_there() -> None:
    scene = Scene()
    scene.zygote()
    scene.order(coded(1, ONE))
    assert [type(action) for action in scene.actions] == [FetchCode]
    ready(scene, TWO)
    assert not scene.actions
    ready(scene, ONE, TWO)
    assert [type(action) for action in scene.actions] == [OpenStore, Fork]


def test_what_is_there_is_not_waited_for() -> None:
    scene = Scene()
    ready(scene, ONE)
    scene.zygote()
    scene.order(coded(1, ONE))
    assert [type(action) for action in scene.actions] == [OpenStore, Fork]


def test_the_present_ranks_train_on_while_the_next_code_is_fetched() -> None:
    scene = running()
    scene.order(coded(2, ONE))
    assert [type(action) for action in scene.actions] == [FetchCode]
    assert scene.state.durable.crew is not None and scene.state.durable.crew.pids
    ready(scene, ONE)
    assert [type(action) for action in scene.actions] == [OpenStore, Stop]
    scene.stopped(0, 1)
    assert scene.forked == [(1, 1), (1, 2)]


def test_a_newer_order_in_between_takes_the_place_of_the_one_that_waits() -> None:
    scene = running()
    scene.order(coded(2, ONE))
    scene.order(coded(3, TWO))
    assert [action.order.generation for action in scene.did(FetchCode)] == [3]
    ready(scene, ONE)
    assert not scene.did(Stop)
    missing(scene, ONE)
    assert not scene.said(ProcessExited)
    ready(scene, ONE, TWO)
    scene.stopped(0, 1)
    assert scene.forked == [(1, 1), (1, 3)]


def test_a_newer_order_while_ranks_are_stopped_waits_for_its_code_as_well() -> None:
    scene = running()
    ready(scene, ONE)
    scene.order(coded(2, ONE))
    scene.order(coded(3, TWO))
    scene.stopped(0, 1)
    assert scene.said(RanksStopped) and not scene.did(Fork)
    ready(scene, ONE, TWO)
    assert scene.forked == [(1, 1), (1, 3)]


def test_an_order_without_ranks_waits_for_nothing() -> None:
    scene = running()
    scene.order(coded(2, ONE))
    scene.order(order(3, idle=True))
    assert [type(action) for action in scene.actions] == [Stop]


def test_a_restarted_agent_asks_again_and_adopts_what_runs_meanwhile() -> None:
    scene = running()
    scene.order(coded(2, ONE))
    scene.state = AgentState(node="n", instance=uuid7(), durable=scene.state.durable)
    scene.zygote((0, 100), (1, 101))
    assert [action.order.generation for action in scene.did(FetchCode)] == [2]
    ready(scene, ONE)
    scene.stopped(0, 1)
    assert scene.forked == [(1, 1), (1, 2)]
    # The ranks of the order run: nothing is fetched for them any more.
    scene.run(2)
    scene.state = AgentState(node="n", instance=uuid7(), durable=scene.state.durable)
    scene.zygote((0, 100), (1, 101), fence=(1, 2))
    assert not scene.did(FetchCode)


def test_code_that_cannot_be_had_is_a_failed_start_with_its_cause() -> None:
    scene = running()
    scene.order(coded(2, ONE))
    missing(scene, ONE)
    (evidence,) = scene.said(CodeNotInPlace)
    assert (evidence.version, evidence.detail, evidence.generation) == (ONE, "the bus does not have it", 2)
    exits = scene.said(ProcessExited)
    assert [(event.rank, event.generation) for event in exits] == [(0, 2), (1, 2)]
    assert "could not be fetched: the bus does not have it" in exits[0].detail
    # The controller has ended the generation that runs: it must not go on.
    assert scene.did(Stop)
    scene.stopped(0, 1)
    ready(scene, ONE)
    assert scene.forked == [(1, 1)]
    scene.order(coded(3, ONE))
    assert scene.forked == [(1, 1), (1, 3)]


def test_code_that_was_forgotten_is_fetched_again() -> None:
    scene = running()
    ready(scene, ONE)
    ready(scene)
    scene.order(coded(2, ONE))
    assert [type(action) for action in scene.actions] == [FetchCode]


@pytest.mark.parametrize("version", ["../../etc", "1" * 63, "G" * 64, "", "1" * 64 + "\n"])
def test_an_order_with_a_version_that_is_none_is_not_read(version: str) -> None:
    with pytest.raises(UnreadableOrder, match="code_version"):
        NodeOrder.decode(coded(1, version).encode())


def test_a_rank_finds_its_version_and_what_is_imported_from_the_tree(tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    files = RankFiles(vault=Path("/v"), ledger=Path("/l"), reports=Path("/r"), error=Path("/e"))
    asked = coded(1, ONE)
    assert asked.placement is not None
    spec = msgspec.structs.replace(
        asked.placement.job, code_root="/src", cwd="/src/sub", env={"PYTHONPATH": "..:/usr/lib:/src/lib:/src/.venv"}
    )
    placement = msgspec.structs.replace(asked.placement, job=spec)
    found = rank_environment({}, asked, placement, 0, files, tmp_path)
    # What is no part of the version is imported from where it lies.
    assert found["PYTHONPATH"] == f"{tmp_path}:/usr/lib:{tmp_path}/lib:/src/.venv"
    assert (found["HOLDFAST_CODE_ROOT"], found["HOLDFAST_CODE_DIR"]) == ("/src", str(tmp_path))
    assert found["HOLDFAST_CODE_VERSION"] == ONE
    plain = rank_environment({}, asked, placement, 0, files)
    assert plain["PYTHONPATH"] == "..:/usr/lib:/src/lib:/src/.venv" and not plain["HOLDFAST_CODE_DIR"]


_steps = st.lists(
    st.one_of(
        st.tuples(st.just("order"), st.integers(1, 5), st.sampled_from([ONE, TWO, ""])),
        st.tuples(st.sampled_from(["ready", "missing"]), st.just(0), st.sampled_from([ONE, TWO])),
        st.tuples(st.sampled_from(["forked", "stopped", "lost", "found", "restart"]), st.integers(1, 5), st.just("")),
    ),
    max_size=40,
)


@settings(max_examples=100)
@given(_steps)
def test_whatever_happens_nothing_is_forked_without_its_code(steps: list[tuple[str, int, str]]) -> None:
    scene = Scene()
    for what, number, version in steps:
        scene.actions = []
        match what:
            case "order":
                # Of one generation there is one order.
                scene.order(coded(2 * number + (version == TWO), version) if version else order(20 + number))
            case "ready":
                ready(scene, version)
            case "missing":
                missing(scene, version)
            case "forked":
                scene.run(scene.forked[-1][1] if scene.forked else 1)
            case "stopped":
                scene.see(StopDone, number=scene.state.stops, ranks=(), killed=0)
            case "lost":
                scene.see(ZygoteLost)
            case "found":
                scene.zygote()
            case "restart":
                scene.state = AgentState(node="n", instance=uuid7(), durable=scene.state.durable)
        for fork in scene.did(Fork):
            placement = fork.order.placement
            assert placement is not None
            assert placement.code_version is None or f"job-1/{placement.code_version}" in scene.state.code
    assert scene.forked == sorted(set(scene.forked))
