"""The standby service's tables, as the migrations make them."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Integer, Text

from holdfast.store.schema import moment, service_metadata, state_table

METADATA = service_metadata("standby")

state_table(
    METADATA,
    "nodes",
    Column("state", Text, nullable=False),
    Column("job", Text),
    Column("reason", Text),
    moment("blocked_until", nullable=True),
    Column("epoch", BigInteger, nullable=False),
)

state_table(
    METADATA,
    "claims",
    Column("job", Text, nullable=False),
    Column("wanted", Integer, nullable=False),
    moment("granted_at", nullable=True),
    moment("requested_at"),
)
