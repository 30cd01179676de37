"""The views that an SRE asks first."""

from __future__ import annotations

import msgspec
import pytest

from holdfast.events import (
    BadNumber,
    Eviction,
    HangFound,
    HangSuspected,
    IncidentClosed,
    IncidentDiagnosed,
    JobTraced,
    NodeLost,
    NodesGranted,
    NodesRequested,
    RanksStarted,
    RanksStopped,
    SharedFaultFound,
    SharedFaultOver,
    StepsMeasured,
    Suspension,
)
from holdfast.events.parts.job import Grant
from holdfast.events.parts.ranks import RankProcess
from holdfast.events.parts.samples import StepSample
from holdfast.fresh_ids import uuid7
from tests.integration.historian_scene import (
    GENERATIONS,
    INCIDENTS,
    TIMELINE,
    Story,
    assert_phases_add_up,
    database,
    explained,
    killed_and_restarted,
    one,
    query,
    record,
)

pytestmark = pytest.mark.integration


urls = database("historian_views")


async def test_the_phases_of_a_restart(urls: dict[str, str]) -> None:
    story, incident = killed_and_restarted("restart")
    await record(urls["historian"], story.events)
    first, second = await query(urls["reader"], GENERATIONS, "restart")
    assert (first["outcome"], first["cause"], first["incident"]) == ("process_exited", "job_submitted", None)
    assert (first["detect_s"], first["decide_s"], first["stop_s"], first["lost_steps"]) == (None, None, None, None)
    assert first["total_s"] == pytest.approx(0.5)
    assert (second["outcome"], second["cause"], str(second["incident"])) == ("training", "reattempt", incident)
    phases = [second[phase] for phase in ("detect_s", "decide_s", "stop_s", "start_s", "first_step_s", "total_s")]
    assert phases == pytest.approx([0.002, 0.004, 0.011, 0.020, 0.113, 0.150])
    assert sum(phases[:5]) == pytest.approx(phases[5])
    assert (second["restore_step"], second["lost_steps"], second["nodes"]) == (5, 2, ["n1", "n2"])


async def test_an_incident_in_one_row_and_as_a_timeline(urls: dict[str, str]) -> None:
    story, incident = killed_and_restarted("timeline")
    await record(urls["historian"], story.events)
    row = await one(urls, INCIDENTS, "timeline")
    assert str(row["incident"]) == incident
    assert (row["symptom"], row["node"], row["rank"], row["failed_step"]) == ("killed", "n2", 1, 7)
    assert (row["outcome"], row["attempts"], row["nodes_evicted"]) == ("recovered", 1, [])
    assert row["seconds_to_recover"] == pytest.approx(0.150)
    events = await query(urls["reader"], TIMELINE, incident)
    assert [event["type"] for event in events] == [
        *("process_exited", "incident_opened", "reattempt", "generation_started"),
        *("ranks_stopped", "ranks_stopped", "ranks_started", "ranks_started"),
        *("first_step", "first_step", "incident_closed"),
    ]
    assert [event["what"] for event in events[:4]] == [
        "rank 1 was killed by signal 9, last step 7",
        "killed: rank 1 on n2 was killed by signal 9",
        "first failure of n2",
        "generation 2 on n1, n2 from step 5: because",
    ]
    assert events[0]["seconds"] == 0
    assert events[-1]["seconds"] == pytest.approx(0.398)
    assert (events[0]["rank"], events[2]["rank"]) == (1, None)


async def test_a_fault_that_nodes_share_has_a_timeline(urls: dict[str, str]) -> None:
    story, incident = Story("shared"), str(uuid7())
    fault = {"incident": incident, "thing": "address 10.0.0.1", "nodes": ("n1", "n2")}
    found = story.say(SharedFaultFound, 1.0, symptom="network", reason="both report it", **fault)
    story.say(SharedFaultOver, 61.0, cause=found.id, reason="it answers again", **fault)
    await record(urls["historian"], story.events)
    events = await query(urls["reader"], TIMELINE, incident)
    assert [(event["type"], event["seconds"]) for event in events] == [
        ("shared_fault_found", 0.0),
        ("shared_fault_over", pytest.approx(60.0)),
    ]


async def test_a_closed_incident_has_the_name_that_is_known_later(urls: dict[str, str]) -> None:
    story, incident = killed_and_restarted("late")
    named = {"symptom": "cpu_oom", "table_one": "cpu_oom", "root": "unknown", "reason": "the kernel killed it"}
    story.say(IncidentDiagnosed, 20.0, incident=incident, **named)
    for place, event in enumerate(story.events):
        if isinstance(event, IncidentClosed):
            story.events[place] = msgspec.structs.replace(event, symptom="killed_by_signal")
    await record(urls["historian"], story.events)
    row = await one(urls, INCIDENTS, "late")
    assert (row["symptom"], row["table_one"], row["outcome"]) == ("cpu_oom", "cpu_oom", "recovered")
    assert row["closed_at"] < story.at(20.0)


async def test_a_hang_is_a_fault_since_the_job_stood_still(urls: dict[str, str]) -> None:
    story = Story("hung")
    story.submit()
    story.start(0.1, 0.5)
    trace = uuid7()
    still = {"trace": trace, "sign": "waiting", "limit_s": 3.0, "phase": "train", "step": 7}
    # It was looked at before, and only observed; nobody who reads of the hang needs that.
    observed = {"since": story.at(2.0), "still_s": 3.0, "summary": "slow data"}
    story.say(HangFound, 5.0, **(still | observed))
    story.say(HangSuspected, 13.0, standing=(1,), waiting=(0,), still_s=3.0, **still)
    story.say(JobTraced, 14.0, trace=trace, processes=2, still_s=4.0, summary="rank 1 is stopped")
    found = {"since": story.at(10.0), "still_s": 4.0, "summary": "rank 1 is stopped", "nodes": ("n2",), "ranks": (1,)}
    hung = story.say(HangFound, 14.0, **(still | found))
    story.open(14.01, hung, 7, symptom="hang", reason="no progress for 4.0 s")
    story.reattempt(14.01, hung)
    story.start(14.02, 15.0, restore=7)
    story.close(16.0)
    incident = story.events[-1].incident
    await record(urls["historian"], story.events)
    row = await one(urls, INCIDENTS, "hung")
    assert row["fault_at"] == story.at(10.0) and row["seconds_to_recover"] == pytest.approx(5.0, abs=0.01)
    first, again = await query(urls["reader"], GENERATIONS, "hung")
    assert (first["outcome"], again["fault_at"]) == ("hang_found", story.at(10.0))
    assert (again["detect_s"], again["decide_s"]) == (pytest.approx(4.0), pytest.approx(0.02))
    assert again["total_s"] == pytest.approx(5.0, abs=0.01)
    events = await query(urls["reader"], TIMELINE, incident)
    assert [event["type"] for event in events][:4] == ["hang_suspected", "job_traced", "hang_found", "incident_opened"]


async def test_bad_numbers_are_told_as_the_fault_of_an_incident(urls: dict[str, str]) -> None:
    story = Story("nan")
    story.submit()
    story.start(0.1, 0.5)
    story.say(
        StepsMeasured,
        9.0,
        node="n1",
        samples=(
            StepSample(rank=0, step=7, ended_at=story.at(8.9), duration_s=0.1, loss=2.0),
            StepSample(rank=0, step=8, ended_at=story.at(9.0), duration_s=0.1, not_finite={"loss": "nan"}),
        ),
    )
    number = {"step": 8, "rank": 0, "quantity": "loss", "kind": "nan", "certified": 5}
    bad = story.say(BadNumber, 9.4, **number)
    story.open(9.402, bad, 8, symptom="nan", reason="the loss of rank 0 is nan at step 8", rank=0)
    story.reattempt(9.402, bad)
    story.start(9.402, 9.9, restore=5)
    story.say(BadNumber, 20.0, step=30, quantity="grad_norm", kind="jump", value=50.0, level=2.5)
    await record(urls["historian"], story.events)
    row = await one(urls, INCIDENTS, "nan")
    assert (row["symptom"], row["rank"], row["failed_step"], row["fault_at"]) == ("nan", 0, 8, story.at(9.4))
    again = await one(urls, "select * from historian.generations where job = $1 and generation = 2", "nan")
    assert (again["cause"], again["restore_step"], again["lost_steps"]) == ("reattempt", 5, 3)
    assert again["decide_s"] == pytest.approx(0.002)
    first = await one(urls, "select * from historian.generations where job = $1 and generation = 1", "nan")
    assert first["outcome"] == "bad_number"
    events = await query(urls["reader"], TIMELINE, story.incident)
    assert events[0]["what"] == "loss of rank 0 is nan at step 8, certified up to step 5"
    steps = await query(urls["reader"], "select * from historian.steps where job = $1 order by step", "nan")
    assert [(step["loss"], step["not_finite"]) for step in steps] == [(2.0, None), (None, '{"loss": "nan"}')]
    words = await query(
        urls["reader"],
        "select summary as what from historian.events where job = $1 and type = 'bad_number' order by at desc limit 1",
        "nan",
    )
    assert words[0]["what"] == "grad norm rose to 50.0, its level was 2.5 at step 30, no step is certified"


async def test_the_step_of_a_job_is_the_present_one_after_a_rollback(urls: dict[str, str]) -> None:
    story = Story("back")
    story.submit()
    story.start(0.1, 0.5)
    story.steps(0, 40, 9.0)
    story.open(9.5, story.kill(9.4, 41), 41)
    story.start(9.6, 9.9, restore=5)
    story.steps(6, 8, 11.0)
    await record(urls["historian"], story.events)
    row = await one(urls, "select last_step from historian.jobs where job = $1", "back")
    assert row["last_step"] == 8


async def test_a_job_in_one_row(urls: dict[str, str]) -> None:
    story, _ = killed_and_restarted("summary")
    await record(urls["historian"], story.events)
    row = await one(urls, "select * from historian.jobs where job = $1", "summary")
    assert (row["outcome"], row["generations"], row["incidents"], row["lost_steps"]) == ("running", 2, 1, 2)
    assert (row["last_step"], row["script"], row["finished_at"]) == (12, "train.py", None)
    steps = await query(
        urls["reader"], "select * from historian.steps where job = $1 order by ended_at, step", "summary"
    )
    assert [step["step"] for step in steps] == [*range(8), *range(6, 13)]
    assert (steps[0]["loss"], steps[0]["grad_norm"], steps[0]["duration_s"]) == (5.0, None, 0.16)
    counted = await query(urls["reader"], "select * from historian.events_by_type where job = $1", "summary")
    assert {row["type"]: row["events"] for row in counted}["ranks_started"] == 4


async def test_a_lost_node_is_evicted_and_replaced(urls: dict[str, str]) -> None:
    story = Story("evict")
    story.submit()
    story.start(0.001, 0.5)
    lost = story.say(NodeLost, 16.0, node="n2", generation=None, last_heard_at=story.at(10), silent_s=6.0)
    story.open(16.01, lost, failed_step=9, symptom="node_lost", reason="nothing was heard of n2 for 6.0 s")
    story.say(Eviction, 16.01, cause=lost.id, node="n2", blocked_for_s=86400, reason="lost")
    claim = story.say(NodesRequested, 16.01, cause=lost.id, count=1, reason="n2 left the job")
    grants = (Grant(node="n3", epoch=1, address="127.0.0.1", store_ports=(1,)),)
    story.say(NodesGranted, 16.02, claim=claim.id, grants=grants, cause=claim.id)
    story.start(16.03, 16.5, restore=9, nodes=("n1", "n3"))
    story.close(17)
    await record(urls["historian"], story.events)
    first, second = await query(urls["reader"], GENERATIONS, "evict")
    assert first["outcome"] == "node_lost"
    assert second["cause"] == "nodes_granted"
    took = [second[phase] for phase in ("detect_s", "decide_s", "wait_s", "total_s")]
    assert took == pytest.approx([6.0, 0.01, 0.02, 6.501])
    assert (second["nodes"], second["lost_steps"]) == (["n1", "n3"], 0)
    row = await one(urls, INCIDENTS, "evict")
    assert row["nodes_evicted"] == ["n2"]
    assert row["seconds_to_recover"] == pytest.approx(6.501)
    what = {event["type"]: event["what"] for event in await query(urls["reader"], TIMELINE, str(row["incident"]))}
    assert what["node_lost"] == "no heartbeat for 6.0 s"
    assert what["nodes_granted"] == "granted n3"


async def test_each_attempt_of_an_incident_counts_from_its_own_fault(urls: dict[str, str]) -> None:
    story = Story("attempts")
    story.submit()
    story.start(0.001, 0.5)
    first = story.kill(10.0, step=7)
    story.open(10.005, first, failed_step=7, rank=1)
    story.start(10.006, 10.2, restore=5)
    second = story.kill(20.0, step=6)
    story.reattempt(20.003, second)
    story.start(20.004, 20.3, restore=5)
    await record(urls["historian"], story.events)
    rows = await query(urls["reader"], GENERATIONS, "attempts")
    assert [row["detect_s"] for row in rows] == [None, pytest.approx(0.002), pytest.approx(0.002)]
    assert [row["lost_steps"] for row in rows] == [None, 2, 1]
    incident = await one(urls, INCIDENTS, "attempts")
    assert (incident["outcome"], incident["attempts"], incident["seconds_to_recover"]) == ("open", 2, None)


async def test_what_has_not_happened_yet_is_null(urls: dict[str, str]) -> None:
    story = Story("unfinished")
    story.submit()
    story.start(0.001, 0.5)
    died = story.kill(10.0, step=-1)
    story.open(10.005, died, failed_step=-1)
    story.start(10.006, 10.1)
    missing = [event for event in story.events if event.at > story.at(10.05) and event.node == "n2"]
    assert [event.type for event in missing] == ["first_step"]
    await record(urls["historian"], [event for event in story.events if event not in missing])
    _, row = await query(urls["reader"], GENERATIONS, "unfinished")
    assert row["start_s"] is not None
    assert (row["first_step_s"], row["total_s"], row["outcome"], row["lost_steps"]) == (None, None, "starting", 0)


async def test_skewed_clocks_never_make_a_duration_negative(urls: dict[str, str]) -> None:
    story = Story("skewed")
    story.submit()
    story.start(0.001, 0.5)
    died = story.kill(3600.0, step=7)
    story.open(10.005, died, failed_step=7)
    story.start(10.006, -3600.0)
    story.close(10.1)
    await record(urls["historian"], story.events)
    for row in await query(urls["reader"], GENERATIONS, "skewed"):
        assert all(row[name] is None or row[name] >= 0 for name in row.keys() if name.endswith("_s"))  # noqa: SIM118
    incident = await one(urls, INCIDENTS, "skewed")
    assert incident["seconds_to_recover"] == 0
    timeline = await query(urls["reader"], TIMELINE, str(incident["incident"]))
    assert min(event["seconds"] for event in timeline) == 0


async def test_what_comes_late_does_not_stretch_what_was(urls: dict[str, str]) -> None:
    story, incident = killed_and_restarted("late-parts")
    late = {"node": "n2", "incident": incident}
    story.say(RanksStopped, 50, generation=1, ranks=(), killed=0, took_s=0, **late)
    story.say(RanksStarted, 51, ranks=(RankProcess(rank=1, pid=7),), took_s=0, adopted=True, **late)
    story.generation = 2
    second = story.kill(55.0, step=40)
    await record(urls["historian"], story.events)
    _, row = await query(urls["reader"], GENERATIONS, "late-parts")
    assert row["total_s"] == pytest.approx(0.150)
    assert row["stop_s"] == pytest.approx(0.011)
    assert row["outcome"] == "process_exited"
    timeline = await query(urls["reader"], TIMELINE, incident)
    assert len(timeline) == 11
    assert second.id not in {str(event["event"]) for event in timeline}


async def test_waiting_and_training_between_attempts_are_phases_of_their_own(urls: dict[str, str]) -> None:
    """A lost node waits 160 s for another one; the job trains for 100 s and fails again before it has caught up."""
    story = Story("waited")
    story.submit()
    story.start(0.001, 0.5)
    lost = story.kill(10.0, step=50)
    story.open(11.0, lost, failed_step=50)
    for node in ("n1", "n2"):
        story.say(RanksStopped, 11.5, node=node, generation=1, ranks=(0,), killed=0, took_s=0)
    story.say(NodesRequested, 12.0, count=1, incident=story.incident, reason="one is lost")
    # Its other ranks end when the standby service answers that none is free.
    story.say(Suspension, 12.1, generation=1, incident=story.incident, reason="waiting for more")
    before = len(story.events)
    story.start(172.0, 180.0, restore=10)
    # The old ranks were stopped before there were new nodes, not after it.
    story.events[before:] = [event for event in story.events[before:] if event.type != "ranks_stopped"]
    second = story.kill(280.0, step=40)
    story.reattempt(281.0, second)
    story.start(281.0, 290.0, restore=10)
    story.close(400.0)
    await record(urls["historian"], story.events)
    rows = await query(
        urls["reader"], "select * from historian.incident_phases where job = $1 order by began_at", story.job
    )
    took = [(row["generation"], row["phase"], round(row["seconds"], 1)) for row in rows]
    short = pytest.approx(0.0, abs=0.1)
    assert took == [
        (2, "detect", short),
        (2, "decide", 2.0),
        (2, "wait for nodes", 160.0),
        (2, "start", short),
        (2, "first step", pytest.approx(8.0, abs=0.1)),
        (2, "training between attempts", pytest.approx(100.0, abs=0.1)),
        (3, "detect", short),
        (3, "decide", pytest.approx(1.0, abs=0.1)),
        (3, "stop", short),
        (3, "start", short),
        (3, "first step", pytest.approx(9.0, abs=0.1)),
    ]
    incident = await one(urls, INCIDENTS, story.job)
    assert sum(row["seconds"] for row in rows) == pytest.approx(incident["seconds_to_recover"])
    _, restart, _ = await query(urls["reader"], GENERATIONS, story.job)
    names = ("detect_s", "decide_s", "wait_s", "stop_s", "start_s", "first_step_s")
    assert restart["wait_s"] == pytest.approx(160.0)
    assert sum(restart[name] or 0.0 for name in names) == pytest.approx(restart["total_s"], abs=0.01)


async def test_phases_of_all_these_incidents_add_up(urls: dict[str, str]) -> None:
    """Runs after the others, over what they recorded: skewed clocks, late events, attempts without a first step."""
    assert await assert_phases_add_up(urls["reader"]) >= 1


async def test_a_timeline_stays_fast_beside_a_million_other_events(urls: dict[str, str]) -> None:
    """The views use the indexes: no plan reads a whole partition to answer for one incident or one job."""
    for text in (
        "select * from historian.incident_timeline where incident = '019aa0f2-6c00-7000-8000-000000000001'",
        "select * from historian.generations where job = 'gpt'",
        "select * from historian.jobs where job = 'gpt'",
        "select * from historian.incidents where job = 'gpt'",
        "select * from historian.steps where job = 'gpt' and generation = 2",
        "select * from historian.throughput where job = 'gpt' and generation = 2 order by at desc limit 1",
        "select * from historian.logged_numbers where job = 'gpt' and generation = 2",
    ):
        assert "Seq Scan" not in (plan := await explained(urls, text)), f"{text}\n{plan}"
