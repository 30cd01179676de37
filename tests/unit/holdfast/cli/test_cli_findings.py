"""`holdfast hang` and `slow`: their requests, how they wait for the finding, and how they end without one."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import asyncpg
import msgspec
import pytest
from click.testing import CliRunner, Result

from holdfast.bus import Bus, event_message
from holdfast.bus.in_memory import MemoryBroker, MemoryBus
from holdfast.cli.connect import ask as asking
from holdfast.cli.connect.database import DatabaseUnreachable, working
from holdfast.cli.follow import awaited_finding, follower
from holdfast.cli.main import main
from holdfast.events import Event, FailSlowLocated, JobTraced, encode
from holdfast.events.parts.ranks import HangSuspect
from holdfast.ids import derived_id
from holdfast.requests import Answer, Request, TraceJob

FOUND: dict[str, Any] = {"at": datetime.now(UTC), "source": "analyzer", "job": "gpt", "generation": 1}
SUSPECT = HangSuspect(ranks=(3,), nodes=("node-1",), reason="rank 3 never joined", confidence=0.9)


class Cluster:
    """A bus that publishes the finding if `is_published`, and a database that has it at read `recorded_at`.

    The connection to the database is lost at the reads in `lost_at`.
    """

    def __init__(self) -> None:
        self.asked: list[Request] = []
        self.answer = Answer(accepted=True)
        self.looks = 0
        self.recorded_at = 2
        self.lost_at: set[int] = set()
        self.is_down = False
        self.is_published = False
        self.broker = MemoryBroker()

    @contextlib.asynccontextmanager
    async def reading(self, url: str) -> AsyncIterator[Cluster]:
        if self.is_down:
            raise DatabaseUnreachable("cannot reach the database")
        yield self

    @contextlib.asynccontextmanager
    async def connected(self, url: str, command: str) -> AsyncIterator[MemoryBus]:
        self.broker = MemoryBroker()
        yield self.broker.client(command)

    async def ask(self, bus: Bus, subject: str, request: Request, service: str) -> Answer:
        self.asked.append(request)
        if self.is_published:
            message = event_message(self.finding())
            # The bus in memory, unlike NATS, does not pass on to listeners what is published to a stream.
            await self.broker.client("analyzer").broadcast(message.subject, message.body)
        return self.answer

    async def fetchrow(self, query: str, finding: str) -> dict[str, Any] | None:
        self.looks += 1
        if self.looks in self.lost_at:
            raise asyncpg.ConnectionDoesNotExistError("terminating connection due to administrator command")
        if self.looks < self.recorded_at:
            return None
        assert finding == self.own_id
        return {"body": msgspec.json.decode(encode(self.finding()))}

    @property
    def own_id(self) -> str:
        (request,) = self.asked
        return derived_id(request.id, "traced" if isinstance(request, TraceJob) else "located")

    def finding(self) -> Event:
        if not isinstance(self.asked[0], TraceJob):
            return FailSlowLocated(id=self.own_id, **FOUND, asked=self.asked[0].id, fault="unknown")
        traced = JobTraced(id=self.own_id, **FOUND, trace=self.asked[0].id, processes=4, took_s=1.0, still_s=9.0)
        return msgspec.structs.replace(traced, suspects=(SUSPECT,), summary="rank 3 never joined; 3 ranks wait for it")


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    made = Cluster()
    for module, name in (
        (awaited_finding, "reading"),
        (follower, "reading"),
        (awaited_finding, "connected"),
        (asking, "ask"),
    ):
        monkeypatch.setattr(module, name, getattr(made, name))
    monkeypatch.setattr(awaited_finding, "READ_EVERY_S", 0.001)
    return made


def holdfast(tmp_path: Path, *words: str) -> Result:
    addresses = ["--dir", str(tmp_path), "--nats-url", "nats://127.0.0.1", "--database-url", "postgresql://127.0.0.1"]
    return CliRunner().invoke(main, [*words, *addresses])


@pytest.mark.parametrize("is_published", [True, False])
def test_a_hang_is_requested_and_printed_once_it_is_published_or_recorded(
    cluster: Cluster, tmp_path: Path, is_published: bool
) -> None:
    cluster.is_published, cluster.recorded_at = is_published, 1_000_000 if is_published else 5
    done = holdfast(tmp_path, "hang", "gpt", "--native")
    assert done.exit_code == 1, done.output
    assert "suspected: rank 3 on node-1 (90%): rank 3 never joined; 3 ranks wait" in done.output
    (request,) = cluster.asked
    assert isinstance(request, TraceJob) and (request.job, request.native) == ("gpt", True)


def test_slowness_is_asked_for_in_the_same_way(cluster: Cluster, tmp_path: Path) -> None:
    done = holdfast(tmp_path, "slow", "gpt", "--json")
    assert done.exit_code == 0 and msgspec.json.decode(done.output)["asked"] == cluster.asked[0].id


def test_a_database_that_restarts_meanwhile_is_waited_for(cluster: Cluster, tmp_path: Path) -> None:
    cluster.recorded_at, cluster.lost_at = 6, {2, 4, 5}
    done = holdfast(tmp_path, "hang", "gpt")
    assert done.exit_code == 1 and "suspected: rank 3" in done.output, done.output


def test_what_could_not_be_read_is_not_asked_for(cluster: Cluster, tmp_path: Path) -> None:
    cluster.is_down = True
    done = holdfast(tmp_path, "slow", "gpt", "--test")
    assert done.exit_code == 2 and "cannot reach the database" in done.output and not cluster.asked


@pytest.mark.parametrize("command", ["hang", "slow"])
def test_what_nobody_can_tell_is_no_answer(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    cluster.answer = Answer(accepted=False, message="no agent reports a job gpt that trains")
    done = holdfast(tmp_path, command, "gpt")
    assert (done.exit_code, done.output) == (2, "Error: no agent reports a job gpt that trains\n")
    cluster.asked.clear()
    cluster.answer, cluster.recorded_at = Answer(accepted=True), 1_000_000
    monkeypatch.setattr(f"holdfast.cli.commands.diagnosis.{command}.FOUND_WITHIN_S", 0.05)
    done = holdfast(tmp_path, command, "gpt")
    assert done.exit_code == 2 and "no finding within 0.05 s" in done.output


async def test_a_database_without_tables_is_no_database_that_is_away() -> None:
    with pytest.raises(Exception, match="no Holdfast tables") as caught:
        async with working("postgresql://here"):
            raise asyncpg.UndefinedTableError("relation does not exist")
    assert not isinstance(caught.value, DatabaseUnreachable)
