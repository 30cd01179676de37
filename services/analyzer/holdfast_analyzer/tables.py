"""The analyzer's tables, as the migrations make them: windows of samples are in none of them."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, DateTime, Float

from holdfast.store.schema import service_metadata, state_table

METADATA = service_metadata("analyzer")

state_table(
    METADATA,
    "known",
    Column("generation", BigInteger, nullable=False),
    Column("certified_step", BigInteger),
)

state_table(
    METADATA,
    "telemetry_models",
    Column("made_at", DateTime(timezone=True), nullable=False),
    Column("windows", BigInteger, nullable=False),
    Column("accuracy", Float),
    Column("precision", Float),
    Column("recall", Float),
)

state_table(METADATA, "job_nodes", Column("generation", BigInteger, nullable=False))
