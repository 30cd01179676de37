"""The historian's table, as the migrations make it."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, DateTime, Index, MetaData, Table, Text, Uuid, func, text
from sqlalchemy.dialects.postgresql import JSONB

SCHEMA = "historian"
METADATA = MetaData(schema=SCHEMA)

EVENTS = Table(
    "events",
    METADATA,
    Column("id", Uuid, nullable=False),
    Column("at", DateTime(timezone=True), nullable=False),
    Column("class", Text, nullable=False),
    Column("type", Text, nullable=False),
    Column("source", Text, nullable=False),
    Column("job", Text),
    Column("generation", BigInteger),
    Column("node", Text),
    Column("cause", Uuid),
    Column("incident", Uuid),
    Column("body", JSONB, nullable=False),
    Column("recorded_at", DateTime(timezone=True), nullable=False, server_default=func.now()),
    Column("summary", Text),
    postgresql_partition_by="RANGE (at)",
    comment="every event, in daily partitions by the emitter's clock; body is the event as it was on the bus",
)
"""Every event, in daily partitions by `at` (the emitter's clock); `recorded_at` is the database's clock."""

# Anyone can use the id of another's event; the bus keeps nodes from using its type and node.
Index(
    "events_once",
    *(EVENTS.c[name] for name in ("id", "at", "type", "node")),
    unique=True,
    postgresql_nulls_not_distinct=True,
)
# What every node sends every second (progress, steps_measured) would fill the indexes: only that of samples has them.
Index("events_at", EVENTS.c.at, postgresql_using="brin")
Index(
    "events_type",
    EVENTS.c.type,
    EVENTS.c.job,
    EVENTS.c.generation,
    postgresql_where=text("type <> 'progress' AND type <> 'steps_measured'"),
)
Index(
    "events_incident",
    EVENTS.c.incident,
    postgresql_where=text("incident IS NOT NULL AND type <> 'progress' AND type <> 'steps_measured'"),
)
Index(
    "events_samples",
    EVENTS.c.job,
    EVENTS.c.generation,
    EVENTS.c.at,
    postgresql_where=text("type = 'steps_measured'"),
)

Table(
    "job_nodes",
    METADATA,
    Column("job", Text, primary_key=True),
    Column("node", Text, primary_key=True),
    Column("generation", BigInteger, nullable=False),
    Column("at", DateTime(timezone=True), nullable=False),
    comment="the nodes of each job, each with the newest generation that it belongs to",
)

FOREIGN_EVENTS = Table(
    "foreign_events",
    METADATA,
    *(Column(it.name, it.type, nullable=it.nullable, server_default=it.server_default) for it in EVENTS.columns),
    comment="events about a job from nodes that do not belong to it; no view has them",
)
Index(
    "foreign_events_once",
    *(FOREIGN_EVENTS.c[name] for name in ("id", "at", "type", "node")),
    unique=True,
    postgresql_nulls_not_distinct=True,
)
Index("foreign_events_job", FOREIGN_EVENTS.c.job)
Index("foreign_events_recorded_at", FOREIGN_EVENTS.c.recorded_at)
