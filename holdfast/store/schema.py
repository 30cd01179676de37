"""The tables of a service's schema, declared once: the migrations are tested to equal this."""

from __future__ import annotations

from typing import Any

from sqlalchemy import BigInteger, Column, DateTime, Identity, Index, LargeBinary, MetaData, Table, Text, func, text
from sqlalchemy.dialects.postgresql import JSONB


def service_metadata(schema: str) -> MetaData:
    """Return the tables that every service's schema has: its inbox and its outbox."""
    metadata = MetaData(schema=schema)
    Table(
        "inbox",
        metadata,
        Column("id", Text, primary_key=True),
        Column("subject", Text, primary_key=True, server_default=""),
        Column("handled_at", DateTime(timezone=True), nullable=False, server_default=func.now()),
        Index("inbox_handled_at", "handled_at", postgresql_using="brin"),
    )
    Table(
        "outbox",
        metadata,
        Column("position", BigInteger, Identity(always=True), primary_key=True),
        Column("id", Text, nullable=False),
        Column("subject", Text, nullable=False),
        Column("body", LargeBinary, nullable=False),
        Column("headers", JSONB, nullable=False),
        Column("said_at", DateTime(timezone=True), nullable=False, server_default=func.now()),
        Column("published_at", DateTime(timezone=True)),
        Column("stream", Text),
        Column("sequence", BigInteger),
        Index("outbox_unpublished", "position", postgresql_where=text("published_at IS NULL")),
        Index("outbox_published", "stream", "sequence", postgresql_where=text("sequence IS NOT NULL")),
    )
    return metadata


def state_table(metadata: MetaData, name: str, *columns: Column[Any]) -> Table:
    """Return a table of `holdfast.store.Table` rows; `columns` are those projected for queries."""
    return Table(
        name,
        metadata,
        Column("key", Text, primary_key=True),
        Column("version", BigInteger, nullable=False),
        Column("body", JSONB, nullable=False),
        Column("updated_at", DateTime(timezone=True), nullable=False, server_default=func.now()),
        *columns,
    )


def changes_table(metadata: MetaData, name: str) -> Table:
    """Return a table of the changes of rows since they were written whole."""
    return Table(
        name,
        metadata,
        Column("key", Text, primary_key=True),
        Column("version", BigInteger, primary_key=True, autoincrement=False),
        Column("body", JSONB, nullable=False),
    )


def moment(name: str, *, nullable: bool = False) -> Column[Any]:
    """Return a column for a point in time."""
    return Column(name, DateTime(timezone=True), nullable=nullable)
