"""When an agent begins the warm-up of its node, and what it reports of it."""

from __future__ import annotations

import msgspec

from holdfast.engines.checks.suites import END
from holdfast.engines.checks.warm_up import WarmUpResult
from holdfast.events import DiagnosticResult
from holdfast.orders.node import NodeOrder, WarmUp
from holdfast_agent.plan import actions
from holdfast_agent.plan.inputs import CodeReady, WarmUpReported
from tests.scenes.agent import Scene, order, running

CODE = "1" * 64


def warm(generation: int, code: str | None = None) -> NodeOrder:
    plain = order(generation)
    assert plain.placement is not None
    placement = msgspec.structs.replace(plain.placement, warm_up=WarmUp(limit_s=10.0), code_version=code)
    return msgspec.structs.replace(plain, placement=placement)


def begun(scene: Scene) -> list[type[actions.Action]]:
    return [type(action) for action in scene.actions]


def test_it_begins_while_code_is_fetched_and_once() -> None:
    scene = Scene()
    scene.zygote()
    scene.order(warm(1, CODE))
    assert begun(scene) == [actions.OpenStore, actions.StartWarmUp, actions.FetchCode]
    scene.see(CodeReady, code=frozenset({f"job-1/{CODE}"}))
    assert begun(scene) == [actions.Fork]


def test_ranks_do_not_wait_for_it() -> None:
    scene = Scene()
    scene.zygote()
    scene.order(warm(1))
    assert begun(scene) == [actions.OpenStore, actions.StartWarmUp, actions.Fork]


def test_beside_ranks_that_end_it_waits_for_their_end() -> None:
    scene = running()
    scene.order(warm(2))
    assert begun(scene) == [actions.OpenStore, actions.Stop]
    scene.stopped(0, 1)
    assert [action.order.generation for action in scene.did(actions.StartWarmUp)] == [2]


def test_results_of_the_present_order_are_reported_and_no_others() -> None:
    scene = Scene()
    scene.zygote()
    scene.order(warm(1))
    failed = WarmUpResult(test="paths", status="failed", symptom="filesystem_mount", device="/data")
    scene.see(WarmUpReported, fence=(1, 1), results=(failed, WarmUpResult(test=END, status="passed", results=1)))
    first, end = scene.said(DiagnosticResult)
    assert (first.node, first.job, first.generation, first.run) == ("n", "job-1", 1, "job-1/1")
    assert (first.test, first.status, first.device, end.test, end.results) == ("paths", "failed", "/data", END, 1)
    scene.order(warm(2))
    scene.see(WarmUpReported, fence=(1, 1), results=(failed,))
    assert not scene.said(DiagnosticResult)
