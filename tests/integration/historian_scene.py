"""A migrated database for the historian's tests, and stories to record in it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar
from urllib.parse import urlsplit, urlunsplit

import asyncpg
import msgspec
import pytest
import pytest_asyncio

from holdfast.bus import event_message
from holdfast.clock import system_now
from holdfast.events import (
    Event,
    FirstStep,
    GenerationStarted,
    IncidentClosed,
    IncidentOpened,
    JobSubmitted,
    ProcessExited,
    RanksStarted,
    RanksStopped,
    Reattempt,
    StepsMeasured,
)
from holdfast.events.parts.job import JobSpec
from holdfast.events.parts.ranks import RankProcess
from holdfast.events.parts.samples import StepSample
from holdfast.fresh_ids import uuid7
from holdfast.store.upgrade.migrate import migrate
from holdfast_historian.partitions import PartitionPolicy, days_ahead
from holdfast_historian.rows import row_of
from holdfast_historian.store import HistorianStore

ROLES = ("controller", "analyzer", "standby", "ckpt", "historian", "reader")
PASSWORDS = {f"holdfast_{role}": f"for-tests-{role}" for role in ROLES}
WAIT_S = 60.0

E = TypeVar("E", bound=Event)


GENERATIONS = "select * from historian.generations where job = $1 order by generation"
INCIDENTS = "select * from historian.incidents where job = $1"
TIMELINE = "select * from historian.incident_timeline where incident = $1::uuid order by nth"


def database(name: str) -> Any:
    """Return the fixture `urls` of a module's own database."""

    @pytest_asyncio.fixture(scope="module", loop_scope="module")
    async def urls(embedded_postgres: str) -> dict[str, str]:
        return await new_database(embedded_postgres, name)

    return urls


MIGRATED = "migrated"
COPY_RIGHTS = """
update pg_database set datacl = (select datacl from pg_database where datname = $2) where datname = $1
"""


async def new_database(admin_url: str, name: str) -> dict[str, str]:
    """A database of this name with all migrations; its URL by role, `admin` included."""
    parts = urlsplit(admin_url)
    admin = await asyncpg.connect(admin_url)
    try:
        if not await admin.fetchval("select true from pg_database where datname = $1", MIGRATED):
            # Copied for each test's database: it is made in a tenth of the time.
            await admin.execute(f"create database {MIGRATED}")
            await asyncio.to_thread(migrate, urlunsplit(parts._replace(path=f"/{MIGRATED}")), PASSWORDS)
        await admin.execute(f'drop database if exists "{name}" with (force)')
        await admin.execute(f'create database "{name}" template {MIGRATED}')
        # A copy has all but the rights to connect.
        await admin.execute(COPY_RIGHTS, name, MIGRATED)
    finally:
        await admin.close()
    urls = {"admin": urlunsplit(parts._replace(path=f"/{name}"))}
    host = parts.netloc.rpartition("@")[2]
    for role in ROLES:
        user = f"holdfast_{role}"
        urls[role] = urlunsplit(parts._replace(netloc=f"{user}:{PASSWORDS[user]}@{host}", path=f"/{name}"))
    return urls


async def query(url: str, text: str, *arguments: Any) -> list[asyncpg.Record]:
    """Run one query on a connection of its own."""
    connection = await asyncpg.connect(url)
    try:
        return list(await connection.fetch(text, *arguments))
    finally:
        await connection.close()


async def one(urls: dict[str, str], text: str, *arguments: Any) -> asyncpg.Record:
    """The only row of a query, asked as the reading role."""
    (row,) = await query(urls["reader"], text, *arguments)
    return row


async def until(condition: Callable[[], Awaitable[bool]], what: str) -> None:
    """Wait for a condition of the outside world."""
    try:
        async with asyncio.timeout(WAIT_S):
            while not await condition():  # noqa: ASYNC110 - the outside world sets no events
                await asyncio.sleep(0.02)
    except TimeoutError:
        raise AssertionError(f"not within {WAIT_S:g} s: {what}") from None


async def record(historian_url: str, events: Iterable[Event]) -> None:
    """Write events as the historian does, without a bus."""
    store = await HistorianStore.connect(historian_url)
    try:
        await store.create_default_partition()
        for day in days_ahead(system_now(), PartitionPolicy()):
            await store.create_partition(day)
        messages = [event_message(event) for event in events]
        await store.record([row_of(message.subject, message.body) for message in messages])
    finally:
        await store.close()


class Story:
    """Events of one job on nodes n1 and n2; times are seconds after its beginning."""

    def __init__(self, job: str, nodes: tuple[str, ...] = ("n1", "n2")) -> None:
        self.job = job
        self.nodes = nodes
        self.begin = datetime.now(UTC).replace(microsecond=0) - timedelta(seconds=60)
        self.events: list[Event] = []
        self.incident: str | None = None
        self.generation = 0

    def at(self, seconds: float) -> datetime:
        """A moment of the story."""
        return self.begin + timedelta(seconds=seconds)

    def say(self, kind: type[E], at_s: float, /, **fields: Any) -> E:
        """Add an event."""
        defaults = {"source": "test", "job": self.job, "generation": self.generation or None, "incident": self.incident}
        event = kind(id=uuid7(), at=self.at(at_s), **(defaults | fields))
        self.events.append(event)
        return event

    def submit(self) -> None:
        """The job is accepted, at 0."""
        self.say(
            JobSubmitted,
            0,
            reason="asked by a person",
            spec=JobSpec(name=self.job, script="train.py", nnodes=len(self.nodes), cwd="/", directory="/tmp"),
        )

    def start(
        self,
        decided_s: float,
        stepped_s: float,
        restore: int | None = None,
        nodes: tuple[str, ...] = (),
        restored: int | None = None,
        **of_first_step: Any,
    ) -> None:
        """A generation, decided and with its first step on all nodes at these times; node by node 1 ms apart.

        `restore` is what its order names, `restored` what its ranks found (None: the same). `of_first_step`: fields of
        that event.
        """
        self.generation += 1
        self.nodes = nodes or self.nodes
        start = self.say(
            GenerationStarted,
            decided_s,
            cause=self.events[-1].id,
            reason="because",
            nodes=self.nodes,
            world_size=len(self.nodes),
            restore_step=restore,
        )
        for place, node in enumerate(self.nodes):
            own = {"node": node, "cause": start.id}
            if self.generation > 1:
                stopped = own | {"generation": self.generation - 1}
                self.say(
                    RanksStopped, decided_s + 0.010 + place / 1000, ranks=(place,), killed=0, took_s=0.01, **stopped
                )
            ranks = (RankProcess(rank=place, pid=100 + place),)
            self.say(RanksStarted, decided_s + 0.030 + place / 1000, ranks=ranks, took_s=0.01, **own)
            completed = self.at(stepped_s + place / 1000)
            found = restore if restored is None else restored
            step = 0 if found is None else found + 1
            self.say(FirstStep, stepped_s + 0.002, **({"step": step, "completed_at": completed} | own | of_first_step))

    def steps(self, first: int, last: int, at_s: float) -> None:
        """Samples of steps of rank 0 on the first node."""
        samples = tuple(
            StepSample(rank=0, step=step, ended_at=self.at(at_s), duration_s=0.16, loss=5.0 - step / 10, tokens=256)
            for step in range(first, last + 1)
        )
        self.say(StepsMeasured, at_s, node=self.nodes[0], samples=samples)

    def kill(self, exited_s: float, step: int) -> ProcessExited:
        """Rank 1 on the second node dies; the agent says so 2 ms later."""
        return self.say(
            ProcessExited,
            exited_s + 0.002,
            node=self.nodes[-1],
            rank=1,
            local_rank=0,
            signal=9,
            exited_at=self.at(exited_s),
            step=step,
            log_tail="step 6\nstep 7\n",
        )

    def open(self, at_s: float, cause: Event, failed_step: int, **fields: Any) -> None:
        """An incident, with its first decision: restart in place."""
        self.incident = uuid7()
        opened = {"symptom": "killed", "reason": "rank 1 on n2 was killed by signal 9"} | fields
        self.say(IncidentOpened, at_s, cause=cause.id, node=cause.node, failed_step=failed_step, **opened)

    def reattempt(self, at_s: float, cause: Event) -> None:
        """Restart in place."""
        self.say(Reattempt, at_s, cause=cause.id, attempt=1, reason="first failure of n2")

    def close(self, at_s: float, outcome: str = "recovered") -> None:
        """The incident is over."""
        self.say(IncidentClosed, at_s, outcome=outcome, attempts=1, reason="past the failed step")
        self.incident = None


def killed_and_restarted(job: str) -> tuple[Story, str]:
    """A job whose rank dies after step 7, and that trains again 150 ms later from step 5; and its incident."""
    story = Story(job)
    story.submit()
    story.start(0.001, 0.5)
    story.steps(0, 7, 9)
    died = story.kill(10.0, step=7)
    story.open(10.005, died, failed_step=7, rank=1)
    incident = story.incident
    assert incident is not None
    story.reattempt(10.005, died)
    story.start(10.006, 10.149, restore=5)
    story.close(10.4)
    story.steps(6, 12, 11)
    return story, incident


def as_body(event: Event, **fields: Any) -> bytes:
    """An event's body with additional or changed fields."""
    return msgspec.json.encode(msgspec.json.decode(msgspec.json.encode(event)) | fields)


async def explained(urls: dict[str, str], text: str) -> str:
    """Return the plan of a query as the reader."""
    connection = await asyncpg.connect(urls["reader"])
    try:
        await connection.execute("set enable_seqscan = off")
        return "\n".join(row[0] for row in await connection.fetch(f"explain {text}"))
    finally:
        await connection.close()


async def assert_phases_add_up(url: str) -> int:
    """Assert for all incidents that their phases follow each other and are as long as they; return their number."""
    incidents = await query(
        url,
        "select incident, job, coalesce(fault_at, opened_at) as since, coalesce(recovered_at, closed_at) as until,"
        " seconds_to_recover from historian.incidents",
    )
    phases = await query(url, "select * from historian.incident_phases order by began_at, ended_at")
    for incident in incidents:
        own = [row for row in phases if (row["job"], row["incident"]) == (incident["job"], incident["incident"])]
        at = incident["since"]
        for row in own:
            assert row["began_at"] == at < row["ended_at"], f"{row['phase']} of {incident['incident']} at {at}"
            assert row["seconds"] == pytest.approx((row["ended_at"] - row["began_at"]).total_seconds())
            at = row["ended_at"]
        total_s = sum(row["seconds"] for row in own)
        if incident["until"] is not None:
            assert at == max(incident["since"], incident["until"])
            assert total_s == pytest.approx(max(0.0, (incident["until"] - incident["since"]).total_seconds()))
        if incident["seconds_to_recover"] is not None:
            assert total_s == pytest.approx(incident["seconds_to_recover"])
    return len(incidents)
