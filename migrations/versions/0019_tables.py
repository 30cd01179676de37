"""The schema, role and tables of every service, and the role that reads all.

Revision ID: 0019

It replaces the revisions 0001 to 0019, which were never released. A database at 0019 is upgraded from here; one at an
earlier revision is refused (`holdfast.store.upgrade.migrate`). Views are no migrations: they are in `views.sql`.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0019"
down_revision = None
branch_labels = None
depends_on = None

DECIDING = ("controller", "analyzer", "standby", "ckpt")
SCHEMAS = (*DECIDING, "historian")
READER = "holdfast_reader"

# A body holds the values of --env and the token of the job, and so does an order on its way to the bus.
OPEN_TO_THE_READER = {
    "jobs": "key, version, updated_at, phase, generation, incident, exit_code, submitted_at, code_version, code_waits",
    "outbox": "position, id, subject, headers, said_at, published_at",
}


def upgrade() -> None:
    _create_role(READER)
    _close_the_database()
    for schema in SCHEMAS:
        role = f"holdfast_{schema}"
        _create_role(role)
        op.execute(f"create schema if not exists {schema}")
        op.execute(f"grant usage on schema {schema} to {role}, {READER}")
        for to, what in ((role, "select, insert, update, delete"), (READER, "select")):
            op.execute(f"alter default privileges in schema {schema} grant {what} on tables to {to}")
    for schema in DECIDING:
        _create_inbox_and_outbox(schema)
    _create_tables_of_controller()
    _create_tables_of_analyzer_and_standby()
    _create_tables_of_ckpt()
    _create_events()
    for table, columns in OPEN_TO_THE_READER.items():
        op.execute(f"revoke select on controller.{table} from {READER}")
        op.execute(f"grant select ({columns}) on controller.{table} to {READER}")


def _create_role(role: str) -> None:
    # Roles belong to the whole server, so another database of it may have made them.
    op.execute(
        f"""
        do $$ begin
            if not exists (select from pg_roles where rolname = '{role}') then
                create role {role} login;
            end if;
        end $$
        """
    )


def _close_the_database() -> None:
    op.execute("revoke create on schema public from public")
    op.execute(
        """
        do $$ begin
            execute format('revoke temporary on database %I from public', current_database());
        end $$
        """
    )
    op.execute(f"alter role {READER} set default_transaction_read_only = on")
    op.execute(f"alter role {READER} set statement_timeout = '30s'")
    op.execute(f"alter role {READER} set idle_in_transaction_session_timeout = '60s'")


def _create_inbox_and_outbox(schema: str) -> None:
    op.create_table(
        "inbox",
        sa.Column("id", sa.Text, primary_key=True),
        _moment("handled_at", default_now=True),
        schema=schema,
    )
    op.create_index("inbox_handled_at", "inbox", ["handled_at"], schema=schema, postgresql_using="brin")
    op.create_table(
        "outbox",
        sa.Column("position", sa.BigInteger, sa.Identity(always=True), primary_key=True),
        *(_text("id"), _text("subject")),
        sa.Column("body", sa.LargeBinary, nullable=False),
        sa.Column("headers", JSONB, nullable=False),
        _moment("said_at", default_now=True),
        _moment("published_at", nullable=True),
        schema=schema,
    )
    op.create_index(
        "outbox_unpublished", "outbox", ["position"], schema=schema, postgresql_where=sa.text("published_at IS NULL")
    )


def _create_tables_of_controller() -> None:
    _state_table(
        "controller.jobs",
        *(_text("phase"), _integer("generation")),
        sa.Column("incident", sa.Text),
        sa.Column("exit_code", sa.Integer),
        _moment("submitted_at"),
        sa.Column("code_version", sa.Text),
        sa.Column("code_waits", sa.Text),
    )
    _state_table(
        "controller.incidents",
        _text("job"),
        _moment("opened_at"),
        _moment("closed_at", nullable=True),
        _text("symptom"),
        sa.Column("outcome", sa.Text),
        sa.Column("attempts", sa.Integer, nullable=False),
        _text("summary"),
    )
    _state_table("controller.used_names", _moment("ended_at"))
    _state_table(
        "controller.reference_digests",
        *(_text("test"), _text("hardware"), _text("program"), _text("digest")),
        _moment("agreed_at"),
    )
    _state_table(
        "controller.code_versions",
        *(_text("job"), _text("code"), _integer("number"), _text("verdict")),
        _moment("created_at"),
    )
    op.create_table(
        "code_contents",
        sa.Column("sha256", sa.Text, primary_key=True),
        sa.Column("content", sa.LargeBinary, nullable=False),
        _moment("kept_at", default_now=True),
        schema="controller",
    )
    op.create_table(
        "code_manifests",
        sa.Column("version", sa.Text, primary_key=True),
        _moment("kept_at", default_now=True),
        schema="controller",
    )


def _create_tables_of_analyzer_and_standby() -> None:
    _state_table("analyzer.known", _integer("generation"), sa.Column("certified_step", sa.BigInteger))
    _state_table(
        "analyzer.telemetry_models",
        *(_moment("made_at"), _integer("windows")),
        *(sa.Column(score, sa.Float) for score in ("accuracy", "precision", "recall")),
    )
    _state_table(
        "standby.nodes",
        _text("state"),
        sa.Column("job", sa.Text),
        sa.Column("reason", sa.Text),
        _moment("blocked_until", nullable=True),
        _integer("epoch"),
    )
    _state_table(
        "standby.claims",
        _text("job"),
        sa.Column("wanted", sa.Integer, nullable=False),
        _moment("granted_at", nullable=True),
        _moment("requested_at"),
    )


def _create_tables_of_ckpt() -> None:
    _state_table("ckpt.steps", _text("job"), _integer("step"), _text("path"), _integer("bytes"), _moment("saved_at"))
    _state_table(
        "ckpt.plans",
        _integer("generation"),
        sa.Column("nnodes", sa.Integer, nullable=False),
        *(_text("strategy"), _text("protects")),
        sa.Column("every", sa.Integer, nullable=False),
        *(_text("reason"), _moment("planned_at")),
        *(sa.Column(name, sa.BigInteger) for name in ("held_step", "held_generation", "coming_step")),
    )
    _state_table(
        "ckpt.shards",
        _text("job"),
        sa.Column("node_rank", sa.Integer, nullable=False),
        *(_text("node"), _text("keeper")),
        *(_integer("step"), _integer("generation"), _integer("bytes")),
        *(_text("state"), _moment("reported_at")),
    )
    _state_table("ckpt.certified", _integer("generation"), _integer("step"), _moment("certified_at"))


def _create_events() -> None:
    op.create_table(
        "events",
        sa.Column("id", sa.Uuid, primary_key=True),
        sa.Column("at", sa.DateTime(timezone=True), primary_key=True),
        *(_text("class"), _text("type"), _text("source")),
        sa.Column("job", sa.Text),
        sa.Column("generation", sa.BigInteger),
        sa.Column("node", sa.Text),
        sa.Column("cause", sa.Uuid),
        sa.Column("incident", sa.Uuid),
        sa.Column("body", JSONB, nullable=False),
        _moment("recorded_at", default_now=True),
        schema="historian",
        postgresql_partition_by="RANGE (at)",
        comment="every event, in daily partitions by the emitter's clock; body is the event as it was on the bus",
    )
    is_rare = "type <> 'progress' AND type <> 'steps_measured'"
    for name, columns, options in (
        ("events_at", ["at"], {"postgresql_using": "brin"}),
        ("events_type", ["type", "job", "generation"], {"postgresql_where": sa.text(is_rare)}),
        ("events_incident", ["incident"], {"postgresql_where": sa.text(f"incident IS NOT NULL AND {is_rare}")}),
        ("events_samples", ["job", "generation", "at"], {"postgresql_where": sa.text("type = 'steps_measured'")}),
    ):
        op.create_index(name, "events", columns, schema="historian", **options)
    # The historian makes and drops its own partitions, so it owns the table.
    op.execute("grant create on schema historian to holdfast_historian")
    op.execute("alter table historian.events owner to holdfast_historian")
    op.execute(
        f"alter default privileges for role holdfast_historian in schema historian grant select on tables to {READER}"
    )


def _state_table(name: str, *columns: sa.Column) -> None:
    schema, table = name.split(".")
    op.create_table(
        table,
        sa.Column("key", sa.Text, primary_key=True),
        _integer("version"),
        sa.Column("body", JSONB, nullable=False),
        _moment("updated_at", default_now=True),
        *columns,
        schema=schema,
    )


def _text(name: str) -> sa.Column:
    return sa.Column(name, sa.Text, nullable=False)


def _integer(name: str) -> sa.Column:
    return sa.Column(name, sa.BigInteger, nullable=False)


def _moment(name: str, *, nullable: bool = False, default_now: bool = False) -> sa.Column:
    default = sa.func.now() if default_now else None
    return sa.Column(name, sa.DateTime(timezone=True), nullable=nullable, server_default=default)
