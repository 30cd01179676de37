"""Everything that `holdfast doctor` reads, within limits of time. A part that does not answer is a fact, no error."""

from __future__ import annotations

from pathlib import Path

import msgspec

from holdfast.cli.connect.command_tls import network_policy
from holdfast.cli.doctor.facts import Facts
from holdfast.cli.doctor.reading_bus import read_bus
from holdfast.cli.doctor.reading_database import read_database
from holdfast.cli.doctor.reading_machine import (
    read_certificates,
    read_disks,
    read_health_error,
    read_in_memory,
    read_supervisor,
)
from holdfast.cli.doctor.whereabouts import Whereabouts
from holdfast.clock import system_now

SHARED_MEMORY = Path("/dev/shm")
"""Holds the ledgers of ranks. Shards are in memory without a file system."""


async def read_cluster(where: Whereabouts, *, listen: bool = True) -> Facts:
    """Return what is found. Without `listen` it takes a moment only, but clocks of nodes and stuck consumers are not
    noticed.
    """
    database, database_problem = await read_database(where.database_url, system_now)
    nodes = [it.node for it in database.nodes if it.state != "lost"] if database else []
    published = database.published if database else ()
    bus, bus_problem = await read_bus(where.nats_url, nodes, published, system_now, listen=listen)
    if bus is not None and where.nats_monitor_url:
        bus = msgspec.structs.replace(bus, write_error=read_health_error(where.nats_monitor_url))
    processes, supervisor_problem = read_supervisor(where.layout) if where.layout else ((), "")
    return Facts(
        at=system_now(),
        database=database,
        database_problem=database_problem,
        bus=bus,
        bus_problem=bus_problem,
        processes=processes,
        supervisor_problem=supervisor_problem,
        disks=read_disks(_directories(where, database.checkpoint_paths if database else ())),
        in_memory=read_in_memory(_directories_of(where)),
        certificates=read_certificates(network_policy()),
    )


def _directories(where: Whereabouts, checkpoints: tuple[str, ...]) -> list[Path]:
    # Checkpoints may be at a URL, or on another machine: then there is no such directory here.
    found = [SHARED_MEMORY, *(Path(path).parent for path in checkpoints if path.startswith("/"))]
    return found + _directories_of(where)


def _directories_of(where: Whereabouts) -> list[Path]:
    if where.layout is None:
        return []
    return [where.layout.root, where.layout.postgres, where.layout.nats, where.layout.nodes]
