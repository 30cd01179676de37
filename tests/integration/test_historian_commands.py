"""The commands that read: on a real database, with the stories of the views' tests."""

from __future__ import annotations

import asyncio
import csv
import io
import re
from datetime import UTC, datetime
from pathlib import Path

import click
import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner

from holdfast.bus.in_memory import MemoryBroker
from holdfast.cli.follow.training_job import TrainingJobFollower, follow
from holdfast.cli.main import main
from holdfast.events import (
    Eviction,
    IncidentOpened,
    RanksStarted,
    SuspectsTested,
)
from holdfast.events.parts.job import JobSpec
from holdfast.events.parts.ranks import Suspect
from holdfast.fresh_ids import uuid7
from tests.integration.commands_scene import NOT_RECORDED, WAITS, Scene, data, holdfast
from tests.integration.historian_scene import Story, new_database, record
from tests.integration.servers import free_port

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def scene(embedded_postgres: str) -> Scene:
    scene = Scene(asyncio.run(new_database(embedded_postgres, "historian_commands")))
    asyncio.run(scene.set_up())
    return scene


def test_sql_prints_a_table_csv_or_json(scene: Scene) -> None:
    query = "select job, outcome, generations, lost_steps, submitted_at from historian.jobs where job = 'gpt'"
    lines = holdfast(scene, "sql", query).stdout.splitlines()
    assert lines[0].split() == ["job", "outcome", "generations", "lost_steps", "submitted_at"]
    assert lines[1].split()[:4] == ["gpt", "running", "2", "2"]
    (row,) = data(holdfast(scene, "sql", "--json", query))
    assert (row["job"], row["generations"], row["lost_steps"]) == ("gpt", 2, 2)
    (record_,) = csv.DictReader(io.StringIO(holdfast(scene, "sql", "--csv", query).stdout))
    assert (record_["job"], record_["lost_steps"]) == ("gpt", "2")


def test_a_shell_completes_incidents_jobs_and_nodes_and_is_silent_without_a_cluster(scene: Scene) -> None:
    def completed(command: str, begins: str, url: str, *option: str) -> list[str]:
        words = [*command.split(), "--database-url", url, *option]
        shell = ShellComplete(main, {}, "holdfast", "_HOLDFAST_COMPLETE")
        return [item.value for item in shell.get_completions(words, begins)]

    url = scene.urls["reader"]
    incidents = completed("show", "", url)
    assert incidents[0] == "1" and "last" in incidents and completed("explain", "la", url) == ["last"]
    assert completed("nodes release", "n", url) == ["n1", "n2", "n3"]
    assert "gpt" in completed("whatif", "g", url, "--job")
    assert "gpt" in completed("attach", "g", url) and completed("attach", "no-such-job", url) == []
    assert completed("show", "", f"postgresql://nobody@127.0.0.1:{free_port()}/none") == []


def test_a_shell_completes_what_has_logs(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_DATABASE_URL", scene.urls["reader"])
    monkeypatch.setenv("HOLDFAST_NATS_URL", "nats://127.0.0.1:4222")
    shell = ShellComplete(main, {}, "holdfast", "_HOLDFAST_COMPLETE")
    assert {"gpt", "n1", "controller"} <= {item.value for item in shell.get_completions(["logs"], "")}


def test_sql_takes_the_query_from_the_standard_input_and_any_type(scene: Scene) -> None:
    query = """select 1.5::numeric as n, '-infinity'::timestamptz as never, '4713-01-01 BC'::date as old,
               interval '1 day' as day, array[1, null] as list, '{"a": 1}'::jsonb as body, null as nothing,
               'x'::bytea as raw, int4range(1, 5) as range, row(1, 'x') as pair"""
    (row,) = data(holdfast(scene, "sql", "--json", "-", given=query))
    assert (row["n"], row["never"], row["old"], row["body"], row["nothing"]) == (
        *(1.5, "-infinity", "4713-01-01 BC", {"a": 1}, None),
    )
    assert holdfast(scene, "sql", "-", given=query).exit_code == 0
    assert holdfast(scene, "sql", "--csv", "-", given=query).exit_code == 0


def test_sql_without_a_query_lists_what_there_is(scene: Scene) -> None:
    result = holdfast(scene, "sql")
    assert re.search(r"^historian.incident_timeline +view +\S", result.stdout, re.MULTILINE)
    assert "controller.jobs" in result.stdout
    assert "events_default" not in result.stdout


def test_sql_marks_the_place_of_an_error(scene: Scene) -> None:
    result = holdfast(scene, "sql", "select job,\n  outcom from historian.jobs")
    assert result.exit_code == 1
    lines = result.stderr.splitlines()
    assert lines[0] == 'Error: column "outcom" does not exist'
    assert lines[1] == "line 2:   outcom from historian.jobs"
    assert lines[2] == " " * 10 + "^"
    assert "hint:" in result.stderr


def test_sql_shows_no_secrets_and_says_how_to_ask_for_the_rest(scene: Scene) -> None:
    refused = holdfast(scene, "sql", "select * from controller.jobs")
    assert refused.exit_code == 1 and "name the columns" in refused.stderr
    (row,) = data(holdfast(scene, "sql", "--json", "select key, phase from controller.jobs where key = 'gpt'"))
    assert row == {"key": "gpt", "phase": "running"}


@pytest.mark.parametrize("role", ["reader", "historian", "admin"])
def test_sql_never_writes(scene: Scene, role: str) -> None:
    for query in (
        "delete from historian.events",
        "with gone as (delete from historian.events returning 1) select count(*) from gone",
        "create table historian.mine (x int)",
        "select 1; delete from historian.events",
    ):
        result = holdfast(scene, "sql", query, role=role)
        assert result.exit_code == 1
        assert "Traceback" not in result.output
    assert data(holdfast(scene, "sql", "--json", "select count(*) as n from historian.events"))[0]["n"] > 0


def test_sql_cuts_a_long_table_and_says_so(scene: Scene) -> None:
    result = holdfast(scene, "sql", "--limit", "3", "select * from generate_series(1, 10) as n")
    assert result.stdout.split() == ["n", "1", "2", "3"]
    assert "only the first 3 rows" in result.stderr


def test_sql_ends_a_query_that_takes_too_long(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.cli.connect.database.STATEMENT_TIMEOUT_S", 1)
    result = holdfast(scene, "sql", "select pg_sleep(30)")
    assert result.exit_code == 1
    assert "statement timeout" in result.stderr
    assert "narrow it" in result.stderr


def test_sql_with_parameters_is_refused_in_words(scene: Scene) -> None:
    result = holdfast(scene, "sql", "select $1::int")
    assert result.exit_code == 1
    assert "takes no parameters" in result.stderr


def test_jobs(scene: Scene) -> None:
    result = holdfast(scene, "jobs")
    assert [line.split()[:6] for line in result.stdout.splitlines()[1:]] == [
        ["broken", "starting", "1", "0", "1", "0"],
        ["gpt", "running", "2", "12", "1", "2"],
        ["failed", "failed", "1", "0", "0", "0"],
        ["late", "claiming", "0", "-", "0", "0"],
    ]
    assert [row["job"] for row in data(holdfast(scene, "jobs", "--json"))] == ["broken", "gpt", "failed", "late"]


def test_jobs_say_what_one_waits_for_why_one_failed_and_where_they_are(scene: Scene) -> None:
    lines = holdfast(scene, "jobs").stdout.splitlines()
    assert lines[4].endswith(WAITS)
    assert lines[3].endswith("rank 0 raised ValueError twice") and "n1, n2" in lines[3]
    assert data(holdfast(scene, "jobs", "--json"))[3]["waits"]["behind"] == "gpt"


def test_one_job_with_its_ranks(scene: Scene) -> None:
    told = holdfast(scene, "jobs", "gpt").stdout
    started = next(it for it in scene.story.events if isinstance(it, RanksStarted) and it.generation == 2)
    rank = started.ranks[0]
    assert re.search(rf"^ *{rank.rank} +{started.node} +{rank.pid} ", told, re.MULTILINE), told
    about = data(holdfast(scene, "jobs", "gpt", "--json"))
    assert (about["job"], [rank["rank"] for rank in about["ranks"]]) == ("gpt", [0, 1])


def test_a_job_that_is_not_there_never_was_or_is_forgotten(scene: Scene) -> None:
    for command in (("jobs",), ("attach", "--nats-url", "nats://127.0.0.1:1")):
        assert "there is no job named other" in holdfast(scene, *command, "other").stderr
        forgotten = holdfast(scene, *command, "old")
        assert (
            forgotten.exit_code == 1 and f"ended on {scene.story.at(-3):%Y-%m-%d} and was deleted" in forgotten.stderr
        )


def test_attach_to_a_job_that_is_over_says_why_and_ends_with_its_code(scene: Scene) -> None:
    told = holdfast(scene, "attach", "--nats-url", "nats://127.0.0.1:1", "failed")
    assert (told.exit_code, told.stderr) == (
        1,
        "[holdfast] job failed has ended, failed: rank 0 raised ValueError twice\n",
    )


def test_incidents(scene: Scene) -> None:
    lines = holdfast(scene, "incidents").stdout.splitlines()
    assert [line.split()[:2] for line in lines[1:]] == [["2", "broken"], ["1", "gpt"]]
    assert "0.150" in lines[2]
    (row,) = data(holdfast(scene, "incidents", "--job", "gpt", "--json"))
    assert (row["incident"], row["outcome"], row["nodes_evicted"]) == (scene.recovered, "recovered", [])
    assert "no incidents of job other" in holdfast(scene, "incidents", "--job", "other").stdout


def test_incidents_that_only_the_record_has_are_listed(embedded_postgres: str) -> None:
    """As after a restore of the database, where the bus had what came after the backup."""
    scene = Scene(asyncio.run(new_database(embedded_postgres, "incidents_of_the_record")))
    asyncio.run(record(scene.urls["historian"], [*scene.story.events, *scene.broken.events]))
    assert [(row["number"], row["job"], row["outcome"]) for row in data(holdfast(scene, "incidents", "--json"))] == [
        *((2, "gpt", "recovered"), (1, "broken", "unknown")),
    ]
    (row,) = data(holdfast(scene, "incidents", "--job", "gpt", "--json"))
    assert (row["incident"], row["attempts"], row["closed_at"] is not None) == (scene.recovered, 1, True)


def test_show_a_recovered_incident_by_the_beginning_of_its_id(scene: Scene) -> None:
    result = holdfast(scene, "show", scene.recovered[:-1])
    assert result.exit_code == 0, result.output
    assert f"Incident 1 ({scene.recovered}) of job gpt: recovered" in result.stdout
    assert re.search(
        r"^ +2 +0\.002 +0\.004 +0\.011 +0\.020 +0\.113 +0\.150 +2 +training +n1, n2$", result.stdout, re.MULTILINE
    )
    assert "rank 1 was killed by signal 9, last step 7" in result.stdout
    assert "reattempt" in result.stdout and "first failure of n2" in result.stdout
    assert "Rank 1 on n2: end of its log\n  step 6\n  step 7\n" in result.stdout


def test_incidents_have_numbers_that_people_can_type(scene: Scene) -> None:
    listed = data(holdfast(scene, "incidents", "--json"))
    assert listed[0]["number"] == len(listed) > 1 and {row["number"] for row in listed} == {*range(1, len(listed) + 1)}
    for row in listed:
        shown = data(holdfast(scene, "show", str(row["number"]), "--json"))
        assert shown["incident"]["incident"] == row["incident"]
    assert data(holdfast(scene, "show", "last", "--json"))["incident"]["incident"] == listed[0]["incident"]
    assert "no incident has the number or begins with 99" in holdfast(scene, "show", "99").stderr
    with_number = holdfast(scene, "incidents").stdout.splitlines()
    assert with_number[0].split()[0] == "NUMBER" and with_number[1].split()[0] == str(len(listed))


def test_show_the_evidence_of_an_exception(scene: Scene) -> None:
    result = holdfast(scene, "show", scene.open)
    assert "Rank 0 on n1: traceback\n  Traceback:\n    line \\x1b[31mred\n" in result.stdout
    assert "20 lines omitted; --full shows them" in result.stdout
    assert "  line 19\n" not in result.stdout
    assert "  line 0\n" in holdfast(scene, "show", scene.open, "--full").stdout
    shown = data(holdfast(scene, "show", scene.open, "--json"))
    assert shown["incident"]["outcome"] == "open"
    assert [body["rank"] for body in shown["evidence"]] == [0]
    assert shown["evidence"][0]["exception"]["type"] == "ValueError"


def test_show_says_when_an_id_is_unknown_ambiguous_or_none(scene: Scene) -> None:
    assert "no incident has the number or begins with ffff" in holdfast(scene, "show", "ffff").stderr
    ambiguous = holdfast(scene, "show", "0").stderr
    assert scene.open in ambiguous and scene.recovered in ambiguous
    assert "is not the id of an incident" in holdfast(scene, "show", "100%").stderr


async def test_a_job_that_is_followed_shows_the_number_of_its_incident(
    scene: Scene, capsys: pytest.CaptureFixture[str]
) -> None:
    opened = IncidentOpened(
        id=uuid7(),
        at=datetime.now(UTC),
        source="controller",
        job="gpt",
        incident=scene.recovered,
        reason="killed",
        symptom="killed_by_signal",
        failed_step=7,
    )
    for url, name in ((scene.urls["reader"], "1"), (f"postgresql://x@127.0.0.1:{free_port()}/x", scene.recovered)):
        follower = TrainingJobFollower("gpt", MemoryBroker().client("run"), url)
        await follower.prepare(opened)
        follower.take(opened)
        assert f"[holdfast] gpt: incident {name}: killed\n" in capsys.readouterr().err


async def test_a_name_that_is_taken_is_refused_before_the_code_is_sent(scene: Scene) -> None:
    nowhere = f"nats://127.0.0.1:{free_port()}"
    for job, why in (("gpt", "exists already"), ("old", "was forgotten")):
        spec = JobSpec(name=job, script="t.py", cwd="/", directory="/jobs")
        with pytest.raises(click.ClickException, match=f"a job named {job} .*{why}; choose another --name"):
            await follow(spec, nowhere, scene.urls["reader"])


def test_explain_has_each_rung_its_evidence_and_what_would_have_come_next(scene: Scene) -> None:
    result = holdfast(scene, "explain", scene.open[:-1])
    assert result.exit_code == 0, result.output
    told = result.stdout
    assert "1. reattempt (generation 1 failed): restart in place, on the same nodes" in told
    assert "   because rank 0 on n1 raised ValueError" in told
    assert "   evidence process_exited n1 rank 0: ValueError: bad batch\n" in told
    assert f"   evidence {NOT_RECORDED}: the historian has not recorded it (yet)" in told
    assert "   had it happened again: stop" in told
    (rung,) = data(holdfast(scene, "explain", scene.open, "--json"))["rungs"]
    assert rung["evidence"][0]["exception"] == "ValueError: bad batch"
    assert "No decision was recorded." in holdfast(scene, "explain", scene.recovered).stdout
    assert "no incident has the number or begins with ffff" in holdfast(scene, "explain", "ffff").stderr


def test_breakers(scene: Scene) -> None:
    for command in (("breaker", "show"), ("breaker",)):
        (row,) = data(holdfast(scene, *command, "--json"))
        assert (row["job"], row["evictions"], row["reason"]) == ("late", 3, "too many of them")


def test_nodes(scene: Scene) -> None:
    lines = [re.split(r" {2,}", line) for line in holdfast(scene, "nodes").stdout.splitlines()]
    assert lines[1:] == [
        ["n1", "active", "gpt", "3", "-", "granted"],
        ["n2", "evicted", "-", "4", "2025-11-21 16:51:07.000", "failed twice"],
        ["n3", "standby", "-", "0", "-", "-"],
    ]
    assert [row["node"] for row in data(holdfast(scene, "nodes", "--json"))] == ["n1", "n2", "n3"]


def test_a_node_whose_rack_fails_more_often_than_chance_has_it(scene: Scene) -> None:
    shown = holdfast(scene, "nodes", "n1").stdout
    assert "n1 is active in job gpt; chance of a lasting fault: 20%" in shown
    assert "jobs get nodes of its rack last: 4 nodes of rack r7 have failed within 5 days" in shown
    assert data(holdfast(scene, "nodes", "n3", "--json"))["rack_finding"].startswith("4 nodes of rack r7")


def test_a_database_that_is_not_there_is_named(scene: Scene, tmp_path: Path) -> None:
    url = f"postgresql://reader:secret@127.0.0.1:{free_port()}/holdfast"
    result = CliRunner().invoke(main, ["jobs", "--database-url", url])
    assert result.exit_code == 1
    assert "cannot reach the database at 127.0.0.1" in result.stderr
    assert "secret" not in result.stderr
    result = CliRunner().invoke(main, ["jobs", "--dir", str(tmp_path)])
    assert "start one with `holdfast up`" in result.stderr


def test_a_wrong_password_and_an_empty_database_are_told(scene: Scene) -> None:
    wrong = scene.urls["reader"].replace("for-tests-reader", "wrong")
    assert "refuses this user" in CliRunner().invoke(main, ["jobs", "--database-url", wrong]).stderr
    empty = scene.urls["admin"].replace("historian_commands", "postgres")
    assert "no Holdfast tables" in CliRunner().invoke(main, ["jobs", "--database-url", empty]).stderr


def test_show_has_the_cost_of_a_group_that_was_evicted_for_one_of_its_nodes(scene: Scene) -> None:
    story, reason = Story("grouped", ("n1", "n2", "n3")), "one of n1, n2, n3 blocks the others"
    story.submit()
    story.start(0.001, 0.5)
    story.open(2.0, story.kill(1.0, step=-1), failed_step=-1, symptom="hang")
    incident = story.incident or ""
    for node in story.nodes:
        story.say(Eviction, 2.0, node=node, epoch=1, blocked_for_s=60.0, together=story.nodes, reason=reason)
    story.close(3.0)
    asyncio.run(record(scene.urls["historian"], story.events))
    assert "3 nodes evicted together; their tests are not over" in holdfast(scene, "show", incident).stdout
    at_fault = (Suspect(node="n2", symptom="cuda_error", reason="gemm failed"),)
    costs = {"took_s": 30.0, "pool_s": 60.0}
    tested = story.say(
        SuspectsTested, 32.0, incident=incident, run="retest", at_fault=at_fault, cleared=("n1", "n3"), **costs
    )
    asyncio.run(record(scene.urls["historian"], [tested]))
    shown = holdfast(scene, "show", incident).stdout
    assert "n2 at fault, 2 back and 0 in doubt after 30.000 s; the pool lacked 60.000 node-seconds" in shown
    assert "suspects_tested" in shown, "a finding that came long after the incident was over"
    (row,) = data(holdfast(scene, "sql", "--json", "select * from historian.group_evictions"))
    assert (row["nodes"], row["at_fault"], row["cleared"]) == (["n1", "n2", "n3"], ["n2"], ["n1", "n3"])
    assert (row["took_s"], row["pool_s"], row["summary"]) == (30.0, 60.0, reason)
