"""The controller's tables, as the migrations make them."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, DateTime, Double, Integer, LargeBinary, Table, Text, func

from holdfast.store.schema import changes_table, moment, service_metadata, state_table

METADATA = service_metadata("controller")

state_table(
    METADATA,
    "jobs",
    Column("phase", Text, nullable=False),
    Column("generation", BigInteger, nullable=False),
    Column("incident", Text),
    Column("exit_code", Integer),
    moment("submitted_at"),
    Column("code_version", Text),
    Column("code_waits", Text),
)

changes_table(METADATA, "job_changes")

state_table(METADATA, "job_secrets")

state_table(
    METADATA,
    "reference_digests",
    Column("test", Text, nullable=False),
    Column("hardware", Text, nullable=False),
    Column("program", Text, nullable=False),
    Column("digest", Text, nullable=False),
    moment("agreed_at"),
)

state_table(METADATA, "used_names", moment("ended_at"))

state_table(
    METADATA,
    "node_records",
    Column("chance", Double),
    Column("failures", Integer, nullable=False),
    moment("last_at", nullable=True),
)

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

state_table(
    METADATA,
    "code_versions",
    Column("job", Text, nullable=False),
    Column("code", Text, nullable=False),
    Column("number", BigInteger, nullable=False),
    Column("verdict", Text, nullable=False),
    moment("created_at"),
)

Table(
    "code_contents",
    METADATA,
    Column("sha256", Text, primary_key=True),
    Column("content", LargeBinary, nullable=False),
    Column("kept_at", DateTime(timezone=True), nullable=False, server_default=func.now()),
)

Table(
    "code_manifests",
    METADATA,
    Column("version", Text, primary_key=True),
    Column("kept_at", DateTime(timezone=True), nullable=False, server_default=func.now()),
)
