"""Secrets of jobs in Postgres: where they lie, that orders after a restart have them, and that they go at the end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

import asyncpg
import msgspec
import pytest
from servers import PostgresServer
from store_worlds import PASSWORDS
from test_migrations import upgrade_to

from holdfast.effects import Effect
from holdfast.events import NodesGranted
from holdfast.events.parts.job import Grant, JobSpec
from holdfast.fresh_ids import uuid7
from holdfast.requests import SubmitJob
from holdfast.store.jsonb import storable_json
from holdfast.store.postgres import PostgresStore
from holdfast.store.upgrade.migrate import migrate
from holdfast_controller.plan.draft import JobDecision, Rules
from holdfast_controller.plan.job import JobState
from holdfast_controller.plan.phase import Claiming, Ended, JobOutcome
from holdfast_controller.service import Controller
from holdfast_controller.store import JOBS, TABLES

pytestmark = pytest.mark.integration

NOW = datetime(2026, 1, 1, tzinfo=UTC)
SECRET, TOKEN = "5ecret-of-a-user", "t0ken-of-a-job"
SPEC = JobSpec(
    name="job",
    script="t.py",
    cwd="/",
    directory="/jobs/job",
    env={"KEY": SECRET, "OTHER": "plain"},
    token=TOKEN,
    nnodes_min=1,
    nnodes_max=2,
)
APART = "job_secrets"
GRANT = Grant(node="a", epoch=1, address="10.0.0.1", store_ports=(29500,))


@pytest.fixture
def server(tmp_path: Path) -> Iterator[PostgresServer]:
    server = PostgresServer(tmp_path)
    asyncio.run(server.start())
    yield server
    server.stop()


class Running:
    """A controller, as the service runs it: without bus and outbox."""

    def __init__(self, store: PostgresStore, controller: Controller) -> None:
        self.store = store
        self.controller = controller

    async def commit(self, effect: Effect) -> Effect:
        async with self.store.transaction() as tx:
            for row in effect.rows:
                if row.row is None:
                    await tx.delete(row.table, row.key)
                else:
                    await tx.save(row.table, row.key, row.row)
        self.controller.adopt(effect)
        return effect


@asynccontextmanager
async def started(server: PostgresServer) -> AsyncIterator[Running]:
    url = server.url_of("holdfast_controller", PASSWORDS["holdfast_controller"])
    store = await PostgresStore.connect(url, "controller", application_name="test")
    controller = Controller(Rules())
    async with store.transaction() as tx:
        controller.load({table.name: await tx.load_all(table) for table in TABLES})
    try:
        yield Running(store, controller)
    finally:
        await store.close()


async def tables_with(server: PostgresServer, *secrets: str) -> set[str]:
    """Return the controller's tables that have one of these in any column, as the administrator reads them."""
    admin = await asyncpg.connect(server.url)
    try:
        tables = await admin.fetch("select table_name from information_schema.tables where table_schema = 'controller'")
        found = {}
        for (table,) in tables:
            text: str = await admin.fetchval(f"select coalesce(string_agg(t::text, ' '), '') from controller.{table} t")
            found[table] = any(secret in text for secret in secrets)
        assert {"jobs", "job_changes"} <= found.keys()
        return {table for table, has in found.items() if has}
    finally:
        await admin.close()


async def execute(server: PostgresServer, statement: str, *values: object) -> None:
    admin = await asyncpg.connect(server.url)
    try:
        await admin.execute(statement, *values)
    finally:
        await admin.close()


async def insert_as_before(server: PostgresServer, state: JobState) -> None:
    """Write the row of a job as versions before 0033 did."""
    columns = JOBS.columns(state)
    names = ", ".join(columns)
    numbers = ", ".join(f"${number}" for number in range(3, 3 + len(columns)))
    statement = f"insert into controller.jobs (key, version, body, {names}) values ($1, 1, $2, {numbers})"
    await execute(server, statement, state.job, storable_json(state).decode(), *columns.values())


def changed(before: JobState, **fields: object) -> JobDecision:
    return JobDecision(state=msgspec.structs.replace(before, **fields))


async def test_secrets_lie_apart_outlive_a_restart_and_go_with_the_end_of_the_job(server: PostgresServer) -> None:
    await asyncio.to_thread(migrate, server.url, PASSWORDS)
    async with started(server) as running:
        submitted = SubmitJob(id=uuid7(), asked_by="ada", spec=SPEC)
        claimed = (await running.commit(running.controller.on_request(submitted, NOW))).events[-1]
        granted = NodesGranted(id=uuid7(), at=NOW, source="standby", job="job", claim=claimed.id, grants=(GRANT,))
        await running.commit(running.controller.on_event(granted, NOW))
        # As when an elastic job changes its size: then the change that is stored has the specification.
        before = running.controller.jobs["job"]
        assert before.spec == SPEC
        resized = changed(before, spec=msgspec.structs.replace(SPEC, warm_up=False))
        await running.commit(running.controller._effect(before, resized, NOW))
        assert await tables_with(server, "warm_up") >= {"job_changes"}
        assert await tables_with(server, SECRET, TOKEN) == {APART}
    async with started(server) as running:
        state = running.controller.jobs["job"]
        assert state == resized.state
        (order,) = running.controller.orders_in_force()
        assert order.placement is not None
        assert (order.placement.job.env, order.placement.job.token) == (SPEC.env, TOKEN)
        over = changed(state, phase=Ended(outcome=JobOutcome.COMPLETED, exit_code=0, at=NOW))
        await running.commit(running.controller._effect(state, over, NOW))
        assert await tables_with(server, SECRET, TOKEN) == set()
    async with started(server) as running:
        assert running.controller.jobs["job"].is_over


async def test_the_secrets_of_jobs_of_an_earlier_version_are_moved(server: PostgresServer) -> None:
    await upgrade_to(server, "0032")
    of_a_job_that_ended = "0ld-secret"
    whole = JobState(spec=SPEC, phase=Claiming(), submitted_at=NOW, members=(None,))
    bare = msgspec.structs.replace(SPEC, name="bare", env={}, token="")
    ended = msgspec.structs.replace(SPEC, name="ended", env={"KEY": of_a_job_that_ended})
    over = Ended(outcome=JobOutcome.COMPLETED, exit_code=0, at=NOW)
    for state in (
        whole,
        msgspec.structs.replace(whole, spec=bare),
        msgspec.structs.replace(whole, spec=ended, phase=over),
    ):
        await insert_as_before(server, state)
    newer = msgspec.structs.replace(SPEC, env={"KEY": SECRET})
    change = storable_json({"in": {"spec": {"set": newer}}}).decode()
    await execute(server, "insert into controller.job_changes (key, version, body) values ('job', 2, $1)", change)
    await execute(server, "update controller.jobs set version = 2 where key = 'job'")
    await asyncio.to_thread(migrate, server.url, PASSWORDS)
    assert await tables_with(server, SECRET, TOKEN) == {APART}
    assert await tables_with(server, of_a_job_that_ended) == set()
    async with started(server) as running:
        assert running.controller.jobs["job"].spec == newer
        assert running.controller.jobs["bare"].spec == bare
        assert running.controller.jobs["ended"].spec.env == {"KEY": "***"}
