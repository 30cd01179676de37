"""What `holdfast doctor` makes of what it read: each rule, at its limit, and nothing of a cluster that is well."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from holdfast.cli.checkpoints.odds import Loss, Plan
from holdfast.cli.doctor.cluster_findings import findings_of
from holdfast.cli.doctor.facts import (
    SERVICES,
    BusFacts,
    CertificateFile,
    Consumer,
    DatabaseFacts,
    DeadLetters,
    Disk,
    Facts,
    JobOdds,
    JobRow,
    NodeRow,
    Outbox,
    PublishedMessage,
    Stream,
    SupervisedProcess,
    WentBack,
)
from holdfast.cli.doctor.finding import Finding, Severity

GB = 1_000_000_000


def _consumer(**changes: Any) -> Consumer:
    fields = {"stream": "DECISIONS", "service": "historian", "waiting": 3, "idle_s": 90.0, "acknowledged": 40}
    return Consumer(**(fields | changes))


def _node(**changes: Any) -> NodeRow:
    return NodeRow(**({"node": "node-0", "state": "standby", "reason": "", "unchanged_s": 900.0} | changes))


def _job(**changes: Any) -> JobRow:
    return JobRow(**({"job": "gpt", "phase": "running", "unchanged_s": 9000.0, "step_seen_s": 2.0} | changes))


def _process(**changes: Any) -> SupervisedProcess:
    fields = {"name": "controller", "state": "ready", "restarts": 0, "last_exit": None, "ready_s": 900.0}
    return SupervisedProcess(**(fields | changes))


def _odds(machines: int, survived: int) -> JobOdds:
    loss = Loss(loss="1 machine", losses=machines, survived=survived)
    plan = Plan(plan="cross-group", in_use=True, offered=True, memory_factor=1, odds=(loss,))
    return JobOdds(job="gpt", reason="no vault", plans=(plan,))


DATABASE = DatabaseFacts(
    ahead_s=0.2,
    outboxes=(Outbox(service="controller", waiting=2, oldest_s=0.3),),
    nodes=(_node(),),
    jobs=(_job(),),
    odds=(_odds(machines=4, survived=4),),
)
BUS = BusFacts(
    ahead_s=-0.1,
    streams=(Stream(name="DECISIONS", last_sequence=40),),
    consumers=(_consumer(),),
    answering=frozenset({*SERVICES, "agent-node-0"}),
    nodes_ahead_s={"node-0": 0.4},
)
WELL = Facts(
    at=datetime(2026, 1, 1, tzinfo=UTC),
    database=DATABASE,
    bus=BUS,
    processes=(_process(),),
    disks=(Disk(path="/", free_bytes=500 * GB, total_bytes=1000 * GB),),
)


def _with(*, database: dict[str, Any] | None = None, bus: dict[str, Any] | None = None, **changes: Any) -> Facts:
    if database is not None:
        changes["database"] = msgspec.structs.replace(DATABASE, **database)
    if bus is not None:
        changes["bus"] = msgspec.structs.replace(BUS, **bus)
    return msgspec.structs.replace(WELL, **changes)


def _only(facts: Facts) -> Finding:
    (finding,) = findings_of(facts)
    assert finding.cure
    return finding


def test_a_cluster_that_is_well_has_no_finding() -> None:
    assert findings_of(WELL) == []


@pytest.mark.parametrize(
    ("changes", "about"),
    [
        ({"database": None, "database_problem": "cannot reach it"}, "Postgres"),
        ({"bus": None, "bus_problem": "no server answers"}, "NATS"),
        ({"supervisor_problem": "the cluster is not running"}, "cluster"),
    ],
)
def test_what_is_away_is_a_finding(changes: dict[str, Any], about: str) -> None:
    finding = _only(msgspec.structs.replace(WELL, **changes))
    assert (finding.about, finding.severity) == (about, Severity.ERROR)


def test_databases_beside_ours_that_are_open_to_its_roles() -> None:
    finding = _only(_with(database={"open_databases": ("postgres", '"Their Own"')}))
    assert (finding.kind, finding.about, finding.severity) == ("access", "Postgres", Severity.WARNING)
    assert 'revoke connect on database postgres, "Their Own" from public' in finding.cure


def test_without_both_only_their_absence_is_known() -> None:
    away = msgspec.structs.replace(WELL, database=None, database_problem="away", bus=None, bus_problem="away")
    assert [finding.kind for finding in findings_of(away)] == ["database", "bus"]


@pytest.mark.parametrize(
    ("process", "severity"),
    [
        ({"state": "off", "last_exit": "signal 9"}, Severity.ERROR),
        ({"state": "starting"}, Severity.ERROR),
        ({"restarts": 5, "ready_s": 3.0, "last_exit": "exit code 1"}, Severity.WARNING),
    ],
)
def test_processes_that_do_not_run_or_end_again_and_again(process: dict[str, Any], severity: Severity) -> None:
    finding = _only(_with(processes=(_process(**process),)))
    assert (finding.kind, finding.about, finding.severity) == ("process", "controller", severity)


def test_a_server_whose_disk_fails_is_cured_by_its_disk() -> None:
    ended = 'exit code 1: could not write file "global/pg_control": Input/output error'
    finding = _only(_with(processes=(_process(name="postgres", state="starting", last_exit=ended),)))
    assert ended in finding.what
    assert "repair the disk" in finding.cure


def test_a_database_that_recovers_is_to_be_waited_for_unless_nothing_recovers() -> None:
    problem = "cannot connect: the database system is in recovery mode"
    finding = _only(msgspec.structs.replace(WELL, database=None, database_problem=problem))
    assert "wait" in finding.cure
    assert "`startup`" in finding.cure


def test_a_process_that_ended_often_long_ago_is_well() -> None:
    assert findings_of(_with(processes=(_process(restarts=5, ready_s=900.0),))) == []


def test_a_service_without_an_answer() -> None:
    finding = _only(_with(bus={"answering": BUS.answering - {"ckpt-coordinator"}}))
    assert (finding.kind, finding.about) == ("service", "ckpt-coordinator")
    assert "holdfast logs ckpt`" in finding.cure


def test_a_service_whose_process_is_down_is_reported_once() -> None:
    down = _with(bus={"answering": BUS.answering - {"controller"}}, processes=(_process(state="waiting"),))
    assert _only(down).kind == "process"


def test_a_write_error_of_the_bus() -> None:
    finding = _only(_with(bus={"write_error": "no space left on device"}))
    assert finding.kind == "writes" and "no space left on device" in finding.what and "restart" in finding.cure


@pytest.mark.parametrize(
    ("facts", "cause"),
    [
        (_with(database={"outboxes": (Outbox(service="standby", waiting=7, oldest_s=60.0),)}), "takes none of them"),
        (
            _with(
                database={"outboxes": (Outbox(service="standby", waiting=7, oldest_s=60.0),)},
                bus={"answering": BUS.answering - {"standby"}},
            ),
            "the service that publishes them does not answer",
        ),
        (
            _with(
                database={"outboxes": (Outbox(service="standby", waiting=7, oldest_s=60.0),)},
                bus_problem="no server answers",
            ),
            "the bus does not answer",
        ),
    ],
    ids=["refused", "service away", "bus away"],
)
def test_an_outbox_that_does_not_empty(facts: Facts, cause: str) -> None:
    if facts.bus_problem:
        facts = msgspec.structs.replace(facts, bus=None)
    (finding,) = (it for it in findings_of(facts) if it.kind == "outbox")
    assert finding.about == "standby" and "7 messages" in finding.what and cause in finding.what


def test_a_stream_that_is_missing() -> None:
    assert _only(_with(bus={"missing_streams": ("EVIDENCE",)})).about == "EVIDENCE"


def test_a_stream_whose_sequences_went_back() -> None:
    finding = _only(_with(bus={"consumers": (_consumer(acknowledged=41),)}))
    assert (finding.kind, finding.about) == ("stream", "DECISIONS") and "41" in finding.what


def test_a_published_message_that_its_stream_does_not_have() -> None:
    lost = PublishedMessage(service="controller", id="x", stream="DECISIONS", sequence=7)
    finding = _only(_with(bus={"lost_messages": (lost,)}))
    assert (finding.kind, finding.about) == ("stream", "DECISIONS") and "lost message 7" in finding.what


def test_a_stream_that_went_back_and_was_filled_again() -> None:
    finding = _only(_with(database={"went_back": (WentBack(stream="EVIDENCE", publishers=3, ago_s=60.0),)}))
    assert (finding.about, finding.severity) == ("EVIDENCE", Severity.WARNING) and "3 publishers" in finding.what


@pytest.mark.parametrize(
    ("consumer", "is_found"),
    [
        ({"has_moved": False}, True),
        ({"has_moved": False, "idle_s": 20.0}, False),
        ({"has_moved": False, "waiting": 0}, False),
        ({"waiting": 20_001, "idle_s": 0.0}, True),
        ({"waiting": 20_000, "idle_s": 0.0}, False),
    ],
)
def test_consumers_that_stand_still_or_lag(consumer: dict[str, Any], is_found: bool) -> None:
    found = findings_of(_with(bus={"consumers": (_consumer(**consumer),)}))
    assert [finding.about for finding in found] == ["historian"] * is_found


@pytest.mark.parametrize(
    ("node", "what"),
    [
        ({"state": "lost", "reason": "no heartbeat for 7 s"}, "it is lost: no heartbeat for 7 s"),
        ({"node": "node-1", "state": "active"}, "its agent is not connected, and its state is active"),
        ({"state": "registered", "unchanged_s": 301.0, "reason": "no GPU"}, "no standby for 301 s: no GPU"),
    ],
)
def test_nodes(node: dict[str, Any], what: str) -> None:
    finding = _only(_with(database={"nodes": (_node(**node),)}))
    assert finding.kind == "node" and what in finding.what


def test_a_node_that_is_off_is_reported_once() -> None:
    off = _with(
        database={"nodes": (_node(state="lost"),)},
        processes=(_process(name="node-0", state="off"),),
    )
    assert "poweron node-0" in _only(off).cure


def test_a_revoked_node_is_a_warning_with_its_cure() -> None:
    revoked = _with(
        database={"nodes": (_node(state="lost"),)},
        processes=(_process(name="node-0", state="revoked"),),
    )
    finding = _only(revoked)
    assert finding.severity is Severity.WARNING and "credentials restore node-0" in finding.cure


@pytest.mark.parametrize(
    ("job", "what"),
    [
        ({"phase": "claiming", "unchanged_s": 61.0}, "the claim was lost"),
        ({"phase": "claiming", "unchanged_s": 61.0, "wanted": 2, "free": 2}, "2 free, but none granted"),
        ({"phase": "claiming", "unchanged_s": 61.0, "wanted": 2, "free": 1}, "2 wanted, 1 free"),
        ({"phase": "waiting", "unchanged_s": 20.0, "waits_because": "waiting for node-1"}, "20 s: waiting for node-1"),
        ({"phase": "starting", "unchanged_s": 1801.0}, "it is starting since 1801 s"),
        ({"phase": "stopping", "unchanged_s": 121.0}, "it is stopping since 121 s"),
        ({"step_seen_s": 601.0, "step_s": 1.0}, "no step was recorded for 601 s"),
    ],
)
def test_jobs_that_stand_still(job: dict[str, Any], what: str) -> None:
    finding = _only(_with(database={"jobs": (_job(**job),)}))
    assert (finding.kind, finding.about) == ("job", "gpt") and what in finding.what


@pytest.mark.parametrize(
    "job",
    [
        {"phase": "claiming", "unchanged_s": 59.0},
        {"phase": "starting", "unchanged_s": 600.0},
        {"step_seen_s": 700.0, "step_s": 60.0},
        {"step_seen_s": None},
    ],
)
def test_jobs_that_have_time(job: dict[str, Any]) -> None:
    assert findings_of(_with(database={"jobs": (_job(**job),)})) == []


def test_a_node_that_stays_for_lack_of_another_one() -> None:
    finding = _only(_with(database={"jobs": (_job(unreplaced=("n7 stays for now",)),)}))
    assert (finding.kind, finding.about, finding.severity) == ("spare", "gpt", Severity.WARNING)
    assert "n7 stays for now" in finding.what and "nodes release" in finding.cure


def test_a_job_whose_ranks_cannot_write_each_others_files() -> None:
    finding = _only(_with(database={"jobs": (_job(users=("", "job-2015355125")),)}))
    assert (finding.kind, finding.about, finding.severity) == ("user", "gpt", Severity.WARNING)
    assert "the agent's user and job-2015355125" in finding.what and "run_as" in finding.cure
    assert findings_of(_with(database={"jobs": (_job(users=("job-2015355125",)),)})) == []


def test_a_job_that_would_lose_a_shard_with_one_machine() -> None:
    finding = _only(_with(database={"odds": (_odds(machines=4, survived=3),)}))
    assert finding.kind == "copies" and "1 of 4" in finding.what and "ckpt plan gpt" in finding.cure


def test_a_job_of_one_machine_has_no_copies_by_choice() -> None:
    assert findings_of(_with(database={"odds": (_odds(machines=1, survived=0),)})) == []


@pytest.mark.parametrize(("newest_s", "is_found"), [(60.0, True), (2 * 24 * 3600.0, False)])
def test_dead_letters_of_the_last_day(newest_s: float, is_found: bool) -> None:
    letters = DeadLetters(count=3, newest_s=newest_s, consumer="controller", subject="s", error="not JSON")
    found = findings_of(_with(bus={"dead_letters": letters}))
    assert [(it.kind, it.severity) for it in found] == [("dead_letters", Severity.WARNING)] * is_found


def test_a_node_that_publishes_more_than_its_share_is_named_once() -> None:
    letter = DeadLetters(count=1, newest_s=9.0, consumer="floods", subject="EVIDENCE/n1", error="it floods")
    finding = _only(_with(bus={"dead_letters": letter, "flood": letter}))
    assert (finding.kind, finding.about, finding.severity) == ("flood", "n1", Severity.ERROR)
    assert "credentials revoke n1" in finding.cure


@pytest.mark.parametrize(
    ("facts", "about", "what"),
    [
        (_with(bus={"nodes_ahead_s": {"node-0": 6.0}}), ["node-0"], "5.8 s ahead of that of Postgres"),
        (_with(bus={"ahead_s": -6.0}), ["NATS"], "6.2 s behind that of Postgres"),
        (_with(database={"ahead_s": 7.0}), ["this machine", "NATS", "node-0"], "7.0 s behind that of Postgres"),
    ],
)
def test_clocks_are_compared_with_the_databases(facts: Facts, about: list[str], what: str) -> None:
    found = findings_of(facts)
    assert [finding.about for finding in found] == about and what in found[0].what


def test_clocks_without_the_database_are_compared_with_this_machines() -> None:
    away = msgspec.structs.replace(_with(bus={"ahead_s": 6.0}), database=None, database_problem="away")
    (clock,) = (finding for finding in findings_of(away) if finding.kind == "clock")
    assert "6.0 s ahead of that of this machine" in clock.what


@pytest.mark.parametrize(
    ("free", "total", "is_found"),
    [
        (GB, 100 * GB, True),
        (4 * GB, 100 * GB, True),
        (6 * GB, 100 * GB, False),
        (40 * GB, 1000 * GB, False),
        (60_000_000, 64_000_000, False),
        (20_000_000, 64_000_000, True),
        (None, 0, True),
    ],
)
def test_disks(free: int | None, total: int, is_found: bool) -> None:
    found = findings_of(_with(disks=(Disk(path="/data", free_bytes=free, total_bytes=total),)))
    assert [finding.about for finding in found] == ["/data"] * is_found


def test_a_cluster_whose_directory_ends_with_the_machine() -> None:
    finding = _only(_with(in_memory=("/tmp/cluster",)))
    assert (finding.kind, finding.about, finding.severity) == ("disk", "/tmp/cluster", Severity.WARNING)


@pytest.mark.parametrize(("days", "severity"), [(31, None), (29, Severity.WARNING), (-1, Severity.ERROR)])
def test_certificates_that_end_soon(days: int, severity: Severity | None) -> None:
    file = CertificateFile(path="/run/holdfast/tls.pem", ends_at=WELL.at + timedelta(days=days))
    found = findings_of(_with(certificates=(file,)))
    assert [(one.kind, one.about, one.severity) for one in found] == (
        [("certificate", file.path, severity)] if severity else []
    )


def test_errors_come_before_warnings() -> None:
    facts = _with(
        bus={"missing_streams": ("EVIDENCE",), "nodes_ahead_s": {"node-0": 60.0}},
        processes=(_process(restarts=9, ready_s=1.0),),
    )
    assert [finding.kind for finding in findings_of(facts)] == ["stream", "process", "clock"]
