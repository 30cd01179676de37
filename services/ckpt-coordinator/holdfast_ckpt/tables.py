"""The checkpoint coordinator's tables, as the migrations make them."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Integer, Text

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

state_table(
    METADATA,
    "plans",
    Column("generation", BigInteger, nullable=False),
    Column("nnodes", Integer, nullable=False),
    Column("strategy", Text, nullable=False),
    Column("protects", Text, nullable=False),
    Column("every", Integer, nullable=False),
    Column("reason", Text, nullable=False),
    moment("planned_at"),
    Column("held_step", BigInteger),
    Column("held_generation", BigInteger),
    Column("coming_step", BigInteger),
)

state_table(
    METADATA,
    "shards",
    Column("job", Text, nullable=False),
    Column("node_rank", Integer, nullable=False),
    Column("node", Text, nullable=False),
    Column("keeper", Text, nullable=False),
    Column("step", BigInteger, nullable=False),
    Column("generation", BigInteger, nullable=False),
    Column("bytes", BigInteger, nullable=False),
    Column("state", Text, nullable=False),
    moment("reported_at"),
)

state_table(
    METADATA,
    "certified",
    Column("generation", BigInteger, nullable=False),
    Column("step", BigInteger, nullable=False),
    moment("certified_at"),
)

state_table(METADATA, "job_nodes", Column("generation", BigInteger, nullable=False))
