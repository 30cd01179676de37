"""`holdfast doctor` shows the odds of a job's copies, and of plans that would survive more losses, of no kind fewer."""

from __future__ import annotations

from datetime import UTC, datetime

from holdfast.cli.checkpoints.odds import Loss, Plan
from holdfast.cli.doctor.facts import DatabaseFacts, Facts, JobOdds
from holdfast.cli.doctor.odds_lines import JOBS_SHOWN_MAX, odds_lines

LOSSES = {"1 machine": 4, "2 machines": 6, "rack": 2, "group dp": 2}


def _plan(plan: str, *survived: int, in_use: bool = False, memory_factor: float = 1) -> Plan:
    odds = [Loss(loss=it, losses=all_, survived=n) for (it, all_), n in zip(LOSSES.items(), survived, strict=True)]
    return Plan(plan=plan, in_use=in_use, memory_factor=memory_factor, odds=tuple(odds))


OURS = _plan("cross-group", 4, 4, 1, 2, in_use=True)
PLANS = (
    OURS,
    _plan("ring", 4, 5, 2, 0),
    _plan("pairs", 4, 4, 1, 2),
    _plan("two copies", 4, 6, 2, 2, memory_factor=2),
)


def _lines(*odds: JobOdds) -> list[str]:
    facts = Facts(at=datetime(2026, 1, 1, tzinfo=UTC), database=DatabaseFacts(ahead_s=0, odds=odds))
    return "\n".join(odds_lines(facts)).splitlines()


def test_the_plan_in_use_and_what_would_survive_more() -> None:
    _, title, *table = _lines(JobOdds(job="gpt", reason="", plans=PLANS))
    assert "gpt" in title
    assert [" ".join(line.split()) for line in table] == [
        "PLAN MEMORY 1 MACHINE 2 MACHINES RACK GROUP dp",
        "cross-group (in use) 1 x 100 % 66.7 % 50.0 % 100 %",
        "two copies * 2 x 100 % 100 % 100 % 100 %",
    ]


def test_a_job_that_keeps_some_steps_only_is_named_as_such() -> None:
    assert "one step in 8" in _lines(JobOdds(job="gpt", reason="", kept_every=8, plans=PLANS))[-1]


def test_a_job_on_one_machine_and_one_without_a_plan_in_use_have_none() -> None:
    alone = Plan(plan="ring", in_use=True, memory_factor=0, odds=(Loss(loss="1 machine", losses=1, survived=0),))
    assert _lines(JobOdds(job="gpt", reason="", plans=(alone,)), JobOdds(job="old", reason="")) == []


def test_a_job_that_keeps_nothing_in_memory_has_none() -> None:
    assert _lines(JobOdds(job="gpt", reason="", is_kept=False, plans=PLANS)) == []


def test_of_many_jobs_the_first_are_shown() -> None:
    jobs = (JobOdds(job=f"job-{number}", reason="", plans=(OURS,)) for number in range(JOBS_SHOWN_MAX + 2))
    assert _lines(*jobs)[-1] == "and 2 more jobs: `holdfast ckpt plan JOB`"
