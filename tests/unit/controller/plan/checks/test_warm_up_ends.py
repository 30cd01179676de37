"""Ends of ranks during a warm-up: those after a held one are judged with it, and its own error is the cause."""

from __future__ import annotations

from holdfast.engines.checks.suites import END
from holdfast.events import DiagnosticResult, IncidentOpened
from holdfast.events.parts.ranks import RankException
from holdfast.settings.decisions.warm_up import WarmUpPolicy
from holdfast.symptoms import Symptom
from holdfast_controller.plan.draft import Rules
from tests.scenes.failing_job import FailingJob


def test_the_error_of_a_partner_on_a_fit_node_is_not_judged_before_the_one_that_caused_it() -> None:
    scene = FailingJob(nodes=("a", "b"), rules=Rules(warm_up=WarmUpPolicy()))

    def is_fit(node: str) -> None:
        over = {"run": "w", "test": END, "status": "passed", "generation": 1}
        scene.send(DiagnosticResult, node=node, job="job", **over)

    is_fit("b")
    own = RankException(type="TypeError", message="batch() takes 1 argument", traceback="t")
    cascade = RankException(type="RuntimeError", message="Connection closed by peer", traceback="t")
    scene.exit("a", rank=0, exit_code=1, exception=own, step=-1, steps_done=0)
    scene.exit("b", rank=2, exit_code=1, exception=cascade, step=-1, steps_done=0)
    assert not scene.of(IncidentOpened)
    is_fit("a")
    (opened,) = scene.of(IncidentOpened)
    assert opened.symptom == Symptom.USER_EXCEPTION and "batch()" in opened.reason
