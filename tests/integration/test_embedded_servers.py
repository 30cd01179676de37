"""The two servers on their own: what the other integration tests stand on."""

import asyncio
import gc

import asyncpg
import nats
import pytest

from holdfast.embedded.errors import EmbeddedError
from holdfast.embedded.layout import Ports
from holdfast.embedded.servers.readiness import nats_answers, postgres_answers
from holdfast.store.connecting import connect

pytestmark = pytest.mark.integration


async def test_postgres_is_18_with_the_builtin_locale_and_scram(embedded_postgres: str) -> None:
    connection = await asyncpg.connect(embedded_postgres)
    try:
        assert (await connection.fetchval("show server_version")).startswith("18.")
        row = await connection.fetchrow(
            "select datlocprovider, datlocale, current_database() as name from pg_database "
            "where datname = current_database()"
        )
        assert row is not None
        assert (row["datlocprovider"], row["datlocale"], row["name"]) == (b"b", "C.UTF-8", "holdfast")
        methods = await connection.fetch("select distinct auth_method from pg_hba_file_rules")
        assert [method[0] for method in methods] == ["scram-sha-256"]
    finally:
        await connection.close()


async def test_postgres_refuses_a_wrong_password(embedded_postgres: str) -> None:
    with pytest.raises(EmbeddedError, match="secrets"):
        await postgres_answers(embedded_postgres.replace("for-tests-only", "wrong"))


async def test_nats_has_jetstream_and_a_message_limit(embedded_nats: str) -> None:
    client = await nats.connect(embedded_nats)
    try:
        assert client.max_payload == 8 * 1024 * 1024
        assert (await client.jetstream().account_info()).limits is not None
    finally:
        await client.close()


async def test_nats_refuses_a_wrong_password(embedded_nats: str, embedded_ports: Ports) -> None:
    with pytest.raises(EmbeddedError, match="Authorization"):
        await nats_answers("127.0.0.1", embedded_ports.nats, user="holdfast", password="wrong")


async def test_a_connection_that_is_cancelled_while_it_is_made_leaves_no_error() -> None:
    left = list[str]()

    async def server(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    loop = asyncio.get_running_loop()
    before = loop.get_exception_handler()
    loop.set_exception_handler(lambda _, context: left.append(context["message"]))
    serving = await asyncio.start_server(server, "127.0.0.1", 0)
    port = serving.sockets[0].getsockname()[1]
    connecting: asyncio.Task[object] | None = None
    for turns in range(20):
        connecting = asyncio.create_task(connect(f"postgresql://x:y@127.0.0.1:{port}/z"))
        for _ in range(turns):
            await asyncio.sleep(0)
        connecting.cancel()
        await asyncio.wait([connecting])
    connecting = None
    serving.close()
    await serving.wait_closed()
    await asyncio.sleep(0)
    gc.collect()
    loop.set_exception_handler(before)
    assert left == []
