"""Two worlds for the same tests: the store in memory, and Postgres in a server that the test may kill."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Protocol

import asyncpg
import msgspec
from servers import PostgresServer

from holdfast.bus import Message
from holdfast.fresh_ids import uuid7
from holdfast.growing import GrowingSet
from holdfast.settings.addresses import Address
from holdfast.store import Store, Table
from holdfast.store.in_memory import MemoryDatabase, MemoryStore
from holdfast.store.postgres import PostgresStore

ROLES = ("controller", "analyzer", "standby", "ckpt", "historian", "reader")
PASSWORDS = {f"holdfast_{role}": f"pass'word {role}" for role in ROLES}
NOW = datetime(2026, 1, 1, tzinfo=UTC)


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """A row for the tests."""

    phase: str
    generation: int = 0
    notes: tuple[str, ...] = ()
    nodes: GrowingSet = GrowingSet()


def _columns(job: Job) -> dict[str, Any]:
    return {
        "phase": job.phase,
        "generation": job.generation,
        "incident": None,
        "exit_code": None,
        "submitted_at": NOW,
    }


JOBS = Table(name="jobs", row_type=Job, columns=_columns)
JOBS_BY_CHANGES = msgspec.structs.replace(JOBS, changes="job_changes")


class World(Protocol):
    """A database and the stores on it."""

    async def store(self) -> Store:
        """A store as a newly started service has it."""

    async def outbox(self) -> list[bytes]:
        """The bodies of all messages in the outbox, also of published ones, in order."""

    async def kill(self) -> None: ...

    async def revive(self) -> None: ...

    async def leave(self) -> None: ...


class MemoryWorld:
    """The store in memory."""

    def __init__(self) -> None:
        self.database = MemoryDatabase()
        self.stores: list[MemoryStore] = []

    async def store(self) -> MemoryStore:
        self.stores.append(MemoryStore(self.database))
        return self.stores[-1]

    async def outbox(self) -> list[bytes]:
        published = {position: row.message for position, row in self.database.published.items()}
        return [item.body for _, item in sorted((self.database.unpublished | published).items())]

    async def kill(self) -> None:
        for store in self.stores:
            store.available = False

    async def revive(self) -> None:
        for store in self.stores:
            store.available = True

    async def leave(self) -> None:
        for store in self.stores:
            await store.close()


class PostgresWorld:
    """A real Postgres with the migrations, seen as the controller's role."""

    def __init__(self, server: PostgresServer) -> None:
        self.server = server
        self.stores: list[PostgresStore] = []

    async def enter(self) -> None:
        """Empty the tables."""
        admin = await asyncpg.connect(self.server.url)
        await admin.execute("truncate controller.jobs, controller.job_changes, controller.inbox, controller.outbox")
        await admin.close()

    async def store(self, url: Address = "") -> PostgresStore:
        url = url or self.server.url_of("holdfast_controller", PASSWORDS["holdfast_controller"])
        self.stores.append(await PostgresStore.connect(url, "controller", application_name="test"))
        return self.stores[-1]

    async def outbox(self) -> list[bytes]:
        admin = await asyncpg.connect(self.server.url)
        rows = await admin.fetch("select body from controller.outbox order by position")
        await admin.close()
        return [row["body"] for row in rows]

    async def kill(self) -> None:
        self.server.kill()

    async def revive(self) -> None:
        await self.server.start()

    async def leave(self) -> None:
        for store in self.stores:
            await store.close()


def message(body: bytes, subject: str = "holdfast.v1.decision.eviction.job.node") -> Message:
    return Message(id=uuid7(), subject=subject, body=body, headers={"ce-id": "é", "x": "1"})


async def saved(store: Store, key: str, job: Job) -> None:
    """Write a row in a separate transaction."""
    async with store.transaction() as tx:
        await tx.save(JOBS, key, job)


async def loaded(store: Store, key: str) -> Job | None:
    """Return a row as a separate transaction sees it."""
    async with store.transaction() as tx:
        return await tx.load(JOBS, key)
