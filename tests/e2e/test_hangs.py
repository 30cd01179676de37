"""Jobs that stand still: noticed, the guilty rank named, and brought back, each on real processes."""

from __future__ import annotations

import json
import os
import signal
from datetime import datetime
from pathlib import Path

import pytest
from cluster import Cluster
from hang_cases import CASES, GUILTY, Case, Outcome, end, outcome, start, strike
from job import Job
from records import check_record

pytestmark = pytest.mark.e2e

SELF_INFLICTED = [case for case in CASES if case.fault]


def check(cluster: Cluster, job: Job, case: Case, came: Outcome) -> None:
    assert GUILTY in came.ranks, f"{case.name}: the guilty rank is not among the suspects: {came}"
    assert came.decision == case.decision, f"{case.name}: {came}"
    assert came.noticed_s <= came.named_s <= came.decided_s <= came.trains_s, came
    (incident,) = cluster.incidents(job)
    assert (incident["symptom"], incident["outcome"]) == ("hang", "recovered"), case.name
    assert incident["attempts"] == 1, case.name


def test_a_stopped_rank_is_named_and_started_again_and_costs_no_machine(holdfast: Cluster) -> None:
    (case,) = (case for case in CASES if "freeze-rank" in case.inject)
    job = start(holdfast, case, nnodes=2, nproc=1)
    since = strike(holdfast, case, job)
    members = holdfast.members(job)
    try:
        came = outcome(holdfast, case, job, since)
    finally:
        holdfast.command("inject", "--undo", check=False)
    check(holdfast, job, case, came)
    assert came.ranks == (GUILTY,) and "is stopped" in came.summary
    # The script may have sent the signal itself, on any machine.
    assert not holdfast.events(job, "eviction") and holdfast.members(job) == members

    # A look by hand at the job that is well again, and at one that is not there.
    looked = holdfast.command("hang", job.name, "--json")
    found = json.loads(looked.stdout)
    assert found["processes"] == 2 and found["still_s"] < 2
    # The analyzer may look once more meanwhile.
    holdfast.until("the look is recorded", lambda: any(it.get("asked_by") for it in holdfast.events(job, "job_traced")))
    shown = holdfast.command("hang", job.name).stdout
    assert "the job makes progress" in shown and "IS IN" in shown
    refused = holdfast.command("hang", "no-such-job", check=False)
    assert refused.returncode == 2 and "no agent reports a job no-such-job that trains" in refused.stderr
    job.finish()
    check_record(holdfast, job)
    over = holdfast.command("hang", job.name, check=False)
    assert over.returncode == 2 and f"job {job.name} is over" in over.stderr


@pytest.mark.parametrize(
    "cases",
    [
        pytest.param(SELF_INFLICTED[:3], id="deadlock, data loader, skipped collective"),
        pytest.param(SELF_INFLICTED[3:], id="collective of another size", marks=pytest.mark.long),
    ],
)
def test_what_the_script_does_to_itself_is_restarted_and_the_rank_is_named(
    holdfast: Cluster, cases: list[Case]
) -> None:
    # A node for each job, all at the same time.
    jobs: list[tuple[Case, Job]] = [(case, start(holdfast, case, nnodes=1, nproc=3)) for case in cases]
    since: list[datetime] = [strike(holdfast, case, job) for case, job in jobs]
    for (case, job), moment in zip(jobs, since, strict=True):
        check(holdfast, job, case, outcome(holdfast, case, job, moment))
        end(holdfast, case, job)
        check_record(holdfast, job)


WAITS = """
import os, sys, time
print("began")
while not os.path.exists(sys.argv[1]):
    time.sleep(0.05)
"""


def test_a_stopped_rank_of_a_script_without_steps_is_noticed_within_seconds(holdfast: Cluster, tmp_path: Path) -> None:
    (tmp_path / "waits.py").write_text(WAITS)
    job = holdfast.run(tmp_path / "finish", script=tmp_path / "waits.py", nnodes=1, nproc=2, options=["--code", "none"])
    (event,) = holdfast.until("its ranks run", lambda: holdfast.events(job, "ranks_started"))
    (pid,) = (rank["pid"] for rank in event["ranks"] if rank["rank"] == 1)
    job.until("it waits", lambda: "began" in job.output())
    os.kill(pid, signal.SIGSTOP)
    job.until("it began again", lambda: job.output().splitlines().count("began") == 2)
    (found,) = holdfast.until("it is recorded", lambda: holdfast.events(job, "hang_found"))
    assert found["ranks"] == [1] and "is stopped" in found["summary"] and found["limit_s"] == 10
    (tmp_path / "finish").touch()
    assert job.exit_code() == 0, job.errors()
