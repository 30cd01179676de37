"""Probes for readiness of the two servers: a real query and a real login.

The caller knows whether the server's process still runs, and cancels those that have no limit of time.
"""

import asyncio

import asyncpg
import msgspec

from holdfast.embedded.errors import EmbeddedError
from holdfast.network.impostors import refuse_peer
from holdfast.store.connecting import connect

_ASK_AGAIN_S = 0.02
_ANSWER_WITHIN_S = 2.0
_RELOADED_WITHIN_S = 20.0


async def postgres_answers(*urls: str) -> None:
    """Wait until the database answers a query at one of these addresses, which differ in their password.

    Raises EmbeddedError if it refuses all of them.
    """
    url, *others = urls
    while True:
        try:
            # The loopback needs no TLS, and the search for its keys fails if the home directory is not readable.
            connection = await connect(url, timeout=_ANSWER_WITHIN_S, ssl=False)
            try:
                await connection.fetchval("select 1", timeout=_ANSWER_WITHIN_S)
            finally:
                await connection.close(timeout=_ANSWER_WITHIN_S)
        except (asyncpg.InvalidAuthorizationSpecificationError, asyncpg.InvalidCatalogNameError) as error:
            if others:
                url, *others = others
                continue
            raise EmbeddedError(
                f"PostgreSQL refuses its administrator: {error}. Do database and secrets.json "
                "belong to the same cluster?"
            ) from error
        except (
            ConnectionError,
            TimeoutError,
            asyncpg.CannotConnectNowError,
            asyncpg.PostgresConnectionError,
            asyncpg.InterfaceError,
        ):
            await asyncio.sleep(_ASK_AGAIN_S)
        else:
            return


async def nats_answers(host: str, port: int, *, user: str, password: str) -> None:
    """Wait until the server has JetStream, takes the credentials and answers a PING. Raises EmbeddedError if it refuses
    the user.
    """
    while True:
        try:
            async with asyncio.timeout(_ANSWER_WITHIN_S):
                if await _admits(host, port, user, password):
                    return
        except (ConnectionError, TimeoutError, EOFError):
            pass
        await asyncio.sleep(_ASK_AGAIN_S)


async def nats_admits(host: str, port: int, *, user: str, password: str) -> None:
    """Wait until a running server has read its changed configuration. Raises EmbeddedError if it does not."""
    try:
        async with asyncio.timeout(_RELOADED_WITHIN_S):
            while True:
                try:
                    return await nats_answers(host, port, user=user, password=password)
                except EmbeddedError:
                    await asyncio.sleep(_ASK_AGAIN_S)
    except TimeoutError:
        raise EmbeddedError(
            f"nats-server on port {port} does not know {user} within {_RELOADED_WITHIN_S:g} s: see its log"
        ) from None


async def _admits(host: str, port: int, user: str, password: str) -> bool:
    reader, writer = await asyncio.open_connection(host, port)
    try:
        verb, _, body = (await reader.readuntil(b"\r\n")).partition(b" ")
        if verb != b"INFO" or not msgspec.json.decode(body).get("jetstream"):
            return False
        refuse_peer(writer.get_extra_info("sockname"), writer.get_extra_info("peername"))
        login = {"user": user, "pass": password, "verbose": False, "pedantic": False, "lang": "python", "version": "1"}
        writer.write(b"CONNECT " + msgspec.json.encode(login) + b"\r\nPING\r\n")
        answer = await reader.readuntil(b"\r\n")
        if answer.startswith(b"-ERR"):
            raise EmbeddedError(f"nats-server on port {port} refuses its user: {answer.decode().strip()}")
        return answer.startswith(b"PONG")
    finally:
        writer.close()
