"""A weight that is no number is in every checkpoint from then on: the job goes back behind it, and ends undisturbed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cluster import JOBS, Cluster
from records import check_record, timeline

pytestmark = pytest.mark.e2e

KEEP = ("--keep-bytes", "1000000", "--checkpoint-every", "100000", "--step-s", "0.05")
"""Every step in memory, none on a disk."""


def test_a_job_whose_loss_is_nan_goes_on_from_before_and_ends_with_the_undisturbed_result(
    holdfast: Cluster, tmp_path: Path
) -> None:
    poison = tmp_path / "poison"
    job = holdfast.run(*KEEP, "--poison", poison, "--fault-rank", "3")
    plan = "select held_step from ckpt.plans where key = $1 and held_step is not null"
    ((held,),) = holdfast.until("a certified step stays in memory", lambda: holdfast.query(plan, job.name))
    held_step = holdfast.query(plan, job.name)[0][held]
    poison.touch()
    # Its nodes are checked first, by ranks of a generation between.
    job.until("it goes on", lambda: job.generation() == 3)

    (poisoned,) = (int(path.name.removeprefix("poisoned-")) for path in job.journal.glob("poisoned-*"))
    (went_on_with,) = {
        next(note.step for note in job.trained(rank) if note.generation == 3) for rank in range(job.world_size)
    }
    (finding, *_) = holdfast.until("the finding is recorded", lambda: holdfast.events(job, "bad_number"))
    assert (finding["step"], finding["rank"], finding["kind"], finding["elsewhere"]) == (poisoned, 3, "nan", "sound")
    # The newest kept that is certified: none of those of the last seconds before the poison, and none after it.
    assert held_step <= went_on_with - 1 <= finding["certified"] < poisoned

    incident = holdfast.until("the incident is over", lambda: [it for it in holdfast.incidents(job) if it["closed_at"]])
    assert (incident[0]["symptom"], incident[0]["outcome"], incident[0]["attempts"]) == ("nan", "recovered", 1)
    # The limit is behind it: what another failure restores is the newest step again.
    killed = job.kill_rank(1)
    assert killed.step > poisoned
    job.until_step(killed.step + 5, generation=4)
    assert min(note.step for note in job.trained(0) if note.generation == 4) > finding["certified"] + 1
    job.finish()
    check_record(holdfast, job)
    told = timeline(holdfast, incident[0]["key"])
    steps = ("bad_number", "incident_opened", "checks_started", "checks_ended", "reattempt", "generation_started")
    assert [kind for kind in told if kind in steps] == list(steps)
    tested = {(row["node"], row["status"]) for row in holdfast.events(job, "diagnostic_result")}
    assert tested >= {(node, "passed") for node in holdfast.members(job)}
    assert "failed" not in {status for _, status in tested}
    explained = holdfast.command("explain", incident[0]["key"]).stdout
    assert "1. stop_time_checks" in explained and "2. reattempt" in explained

    # The recorded events decide the same again; without checks the decisions part at the bad number, and only there.
    (same,) = json.loads(holdfast.command("whatif", "--job", job.name, "--json").stdout)["jobs"]
    assert same["reproduced"] == same["decisions"] > 0 and not same["partings"]
    policy = tmp_path / "policy.toml"
    policy.write_text('[mechanisms]\nstop_time_checks = "observe"\n')
    told = holdfast.command("whatif", incident[0]["key"], "--policy", policy, "--json").stdout
    (parting,) = json.loads(told)["jobs"][0]["partings"]
    assert parting["cause"]["id"] == finding["id"] and parting["recorded_response"] == "checks_started"
    assert parting["response_instead"] == "reattempt" and parting["cost"]["recorded_s"] > 0


def test_a_job_whose_loss_is_nan_before_a_certified_step_is_named_goes_back_to_its_first_one(
    holdfast: Cluster, tmp_path: Path
) -> None:
    poison = tmp_path / "poison"
    job = holdfast.run(*KEEP, "--poison", poison, "--fault-rank", "3")
    holdfast.until("some are clean", lambda: any(it["step"] >= 1 for it in holdfast.events(job, "steps_certified")))
    poison.touch()
    # Orders name a step some seconds ahead, and it is certified ten steps later: on a machine that stalls, one may be.
    plan = """select unnest(array[held_step, coming_step, (body -> 'complete' ->> 'step')::bigint]) from ckpt.plans"""
    named = set[int]()

    def goes_on() -> bool:
        named.update(row["unnest"] for row in holdfast.query(f"{plan} where key = $1", job.name) if row["unnest"])
        return job.generation() == 3

    job.until("it goes on", goes_on)
    incident = holdfast.until("the incident is over", lambda: [it for it in holdfast.incidents(job) if it["closed_at"]])

    (finding, *_) = holdfast.events(job, "bad_number")
    (went_on_with,) = {
        next(note.step for note in job.trained(rank) if note.generation == 3) for rank in range(job.world_size)
    }
    first = next(it["step"] for it in holdfast.events(job, "steps_kept") if it["generation"] == 1)
    assert first <= finding["certified"] < finding["step"]
    certified = {step for step in named if step <= finding["certified"]}
    assert went_on_with - 1 in certified or (went_on_with - 1 == first and not certified)
    assert incident[0]["outcome"] == "recovered"
    (closed,) = holdfast.until("that is recorded", lambda: holdfast.events(job, "incident_closed"))
    assert f"the job went on at step {went_on_with}" in closed["reason"]
    job.finish()
    check_record(holdfast, job)


@pytest.mark.long
def test_of_a_loss_that_is_reduced_over_all_ranks_the_node_is_found_that_made_it_bad_and_no_other_one_leaves(
    holdfast: Cluster, tmp_path: Path
) -> None:
    bad, until = tmp_path / "bad", tmp_path / "finish"
    arguments = ("--bad-node", bad, "--until", until)
    job = holdfast.run(*arguments, script=JOBS / "reduced_loss.py", nproc=1, options=["--persist-every", "never"])
    holdfast.until("some are clean", lambda: any(it["step"] > 20 for it in holdfast.events(job, "steps_certified")))
    _, culprit = holdfast.members(job)
    bad.write_text(culprit)

    holdfast.until("the incident is over", lambda: [it for it in holdfast.incidents(job) if it["closed_at"]])
    until.touch()
    assert job.exit_code() == 0
    (incident,) = holdfast.incidents(job)
    assert incident["outcome"] == "recovered"
    assert {it["elsewhere"] for it in holdfast.events(job, "bad_number")} == {"bad"}
    (opened,) = holdfast.events(job, "incident_opened")
    assert "node" not in opened and "on several nodes" in opened["reason"]
    # Nothing of the job was on a disk: the machines were compared from its beginning.
    assert [it["suspects"] for it in holdfast.events(job, "replay_ended")] == [[culprit]]
    assert [it["node"] for it in holdfast.events(job, "eviction")] == [culprit]
