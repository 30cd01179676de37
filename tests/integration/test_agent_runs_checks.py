"""An agent that is ordered to check its node: on a machine that computes wrong, from the order to the verdict."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from holdfast.engines.checks.checks_program import checks_of
from holdfast.engines.checks.checks_verdict import judge_checks
from holdfast.engines.checks.folding import unfolded
from holdfast.engines.checks.suites import END
from holdfast.events import DiagnosticResult, FirstStep, Progress, RanksFinished, RanksStarted
from holdfast.events.parts.job import JobSpec
from tests.integration.agent_node import node

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

WRONG_PRODUCTS = Path(__file__).with_name("wrong_products")


async def test_a_machine_that_computes_wrong_says_so_of_itself(
    embedded_nats: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = os.pathsep.join(filter(None, (str(WRONG_PRODUCTS), os.environ.get("PYTHONPATH"))))
    monkeypatch.setenv("PYTHONPATH", path)
    # The author of a job chooses what lies there; checks run as the agent's user.
    trap, ran = tmp_path / "trap", tmp_path / "the-job-ran-code"
    for name in ("holdfast_checks/__init__.py", "holdfast_checks/__main__.py", "holdfast_checks/driver.py"):
        (trap / name).parent.mkdir(parents=True, exist_ok=True)
        (trap / name).write_text(f"open({str(ran)!r}, 'w')\n")
    job = JobSpec(
        name="job-1",
        script="train.py",
        nproc_per_node=2,
        cwd="/",
        directory=str(tmp_path / "job"),
        env={"PYTHONPATH": str(trap)},
    )
    async with node("n", tmp_path / "n", embedded_nats) as it:
        port = (await it.registered()).facts.store_ports[0]
        await it.order(checks_of(job, "gpu"), 3, port, purpose="checks")
        finished = await it.heard.wait(RanksFinished)
        assert not ran.exists()
        await it.heard.wait(DiagnosticResult, lambda result: result.test == END)
        published = it.heard.all(DiagnosticResult)
        *failed, end = published
        assert {result.test for result in failed} == {"gemm"}, "failures at once, and what passed with the end"
        assert (end.test, end.results) == (END, len(failed))
        results = list(unfolded(published))
        started = it.heard.all(RanksStarted)
        assert [(event.generation, event.purpose, len(event.ranks)) for event in started] == [(3, "checks", 1)]
        assert (finished.generation, finished.purpose) == (3, "checks")
        assert not it.heard.all(FirstStep) and not it.heard.all(Progress)
        told = {(result.test, result.status) for result in results}
        assert told == {
            ("dcgm", "skipped"),
            ("memory", "passed"),
            ("gemm", "failed"),
            ("all_to_all", "passed"),
            (END, "passed"),
        }
        assert {(result.run, result.generation, result.total) for result in results} == {("job-1/3", 3, 4)}
        assert len({result.boot_id for result in results}) == 1 and results[0].boot_id
        (suspect,) = judge_checks(["n"], results).suspects
        assert (suspect.node, suspect.symptom) == ("n", "silent_data_corruption")
        assert "rows of a product of whole numbers (torch.float32) are wrong" in suspect.reason
        printed = (it.directory / "logs" / "job-1" / "checks-1-3" / "rank-0.out").read_text()
        assert "gemm: failed" in printed
        assert not list(it.directory.glob("ledgers/*/*/*"))
        # With it ends its zygote, which nobody else shall have.
        await it.end_agent()
