"""The controller's tables, as the migrations make them."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Integer, Text

from holdfast.store.schema import moment, service_metadata, state_table

METADATA = service_metadata("controller")

state_table(
    METADATA,
    "jobs",
    Column("phase", Text, nullable=False),
    Column("generation", BigInteger, nullable=False),
    Column("incident", Text),
    Column("exit_code", Integer),
    moment("submitted_at"),
)

state_table(METADATA, "used_names", moment("ended_at"))

state_table(
    METADATA,
    "incidents",
    Column("job", Text, nullable=False),
    moment("opened_at"),
    moment("closed_at", nullable=True),
    Column("symptom", Text, nullable=False),
    Column("outcome", Text),
    Column("attempts", Integer, nullable=False),
    Column("summary", Text, nullable=False),
)
