"""The checkpoint coordinator's tables, as the migrations make them."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Text

from holdfast.store.schema import moment, service_metadata, state_table

METADATA = service_metadata("ckpt")

state_table(
    METADATA,
    "steps",
    Column("job", Text, nullable=False),
    Column("step", BigInteger, nullable=False),
    Column("path", Text, nullable=False),
    Column("bytes", BigInteger, nullable=False),
    moment("saved_at"),
)
