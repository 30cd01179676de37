"""Start and end of every daemon: settings, logging, signals, an orderly stop.

A daemon runs until SIGTERM or SIGINT, then ends with exit code 0. An unhandled error ends it with
exit code 1 and a traceback in its log; its supervisor restarts it.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable

import msgspec
import structlog

from holdfast.daemon.gate import wait_at_gate
from holdfast.daemon.logs import log_to_stderr
from holdfast.network.guard import private_address, require_private
from holdfast.network.tls import TlsFilesRefused
from holdfast.network.trust import AddressRefused
from holdfast.settings import load
from holdfast.settings.addresses import Address
from holdfast.settings.load import Settings
from holdfast.settings.timeouts import Timeouts

LEAVE_S = 8.0
"""Time for a daemon to stop, beside the grace of its ranks: report their ends, close connections."""

log = structlog.get_logger()


class Daemon(msgspec.Struct, frozen=True, kw_only=True):
    """The configuration of a daemon, as its `serve` function receives it."""

    name: str
    settings: Settings
    flags: argparse.Namespace
    nats_url: Address
    database_url: Address
    order_key: Address = ""
    """The private key of a service that writes orders."""
    order_keys: Address = ""
    """The public keys by which an agent recognizes orders."""


def run(
    name: str,
    main: Callable[[Daemon], Awaitable[None]],
    *,
    description: str,
    add_flags: Callable[[argparse.ArgumentParser], None] | None = None,
    needs_database: bool = True,
) -> None:
    """Run `main` as the daemon `name`; does not return."""
    parser = argparse.ArgumentParser(prog=f"python -m {name}", description=description)
    parser.add_argument("--nats-url", help="address of NATS (HOLDFAST_NATS_URL), for example tls://nats:4222")
    if needs_database:
        parser.add_argument(
            "--database-url", help="address of Postgres (HOLDFAST_DATABASE_URL), with this service's role"
        )
    parser.add_argument(
        "--config", help="TOML file with settings (HOLDFAST_CONFIG; default holdfast.toml if there is one)"
    )
    if add_flags:
        add_flags(parser)
    flags = parser.parse_args()
    given = {"nats_url": flags.nats_url, "database_url": getattr(flags, "database_url", None)}
    try:
        settings, listed = load.load(os.environ, given, flags.config)
    except load.ConfigRefused as error:
        parser.exit(2, f"{name}: {error}\n")
    if not settings.nats_url:
        parser.exit(2, f"{name}: no address of NATS: give --nats-url or set HOLDFAST_NATS_URL\n")
    if needs_database and not settings.database_url:
        parser.exit(2, f"{name}: no address of Postgres: give --database-url or set HOLDFAST_DATABASE_URL\n")
    database_url, nats_url, order_key, order_keys = (
        load.live(key, settings, listed, os.environ)
        for key in ("database_url", "nats_url", "network.order_key", "network.order_keys")
    )
    try:
        require_private(settings)
        if settings.database_url:
            database_url = private_address(database_url, settings.network)
    except (AddressRefused, TlsFilesRefused) as error:
        parser.exit(2, f"{name}: {error}\n")
    log_to_stderr(name)
    daemon = Daemon(
        name=name,
        settings=settings,
        flags=flags,
        nats_url=nats_url,
        database_url=database_url,
        order_key=order_key,
        order_keys=order_keys,
    )
    wait_at_gate()
    sys.exit(asyncio.run(_until_stopped(main, daemon)))


async def _until_stopped(main: Callable[[Daemon], Awaitable[None]], process: Daemon) -> int:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    working = asyncio.ensure_future(main(process))
    stopping = asyncio.create_task(stop.wait(), name="stop")
    log.info("started", pid=os.getpid())
    await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if not working.done():
        working.cancel()
        limit_s = leave_limit_s(process.settings.timeouts)
        _, late = await asyncio.wait({working}, timeout=limit_s)
        if late:
            log.error("did not stop in time", limit_s=limit_s)
            # The event loop would wait for this task without a limit.
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(1)
    if not working.cancelled() and (error := working.exception()) is not None:
        log.error("ended by an error", exc_info=error)
        return 1
    log.info("stopped")
    return 0


def leave_limit_s(timeouts: Timeouts) -> float:
    """Return the seconds after which a stopping daemon exits in any case."""
    return timeouts.stop_grace_s + LEAVE_S
