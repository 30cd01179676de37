"""The schema, role and tables of every service; the role that reads all. The historian's tables follow in 0002."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0001"
down_revision = None

DECIDING = ("controller", "analyzer", "standby", "ckpt")
SCHEMAS = (*DECIDING, "historian")
READER = "holdfast_reader"


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
    # The historian makes and drops its own partitions.
    op.execute("grant create on schema historian to holdfast_historian")
    for schema in DECIDING:
        _create_inbox_and_outbox(schema)
    _create_state_tables()


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
        sa.Column("id", sa.Text, nullable=False),
        sa.Column("subject", sa.Text, nullable=False),
        sa.Column("body", sa.LargeBinary, nullable=False),
        sa.Column("headers", JSONB, nullable=False),
        _moment("said_at", default_now=True),
        _moment("published_at", nullable=True),
        schema=schema,
    )
    op.create_index(
        "outbox_unpublished", "outbox", ["position"], schema=schema, postgresql_where=sa.text("published_at IS NULL")
    )


def _create_state_tables() -> None:
    _state_table(
        "controller",
        "jobs",
        sa.Column("phase", sa.Text, nullable=False),
        sa.Column("generation", sa.BigInteger, nullable=False),
        sa.Column("incident", sa.Text),
        sa.Column("exit_code", sa.Integer),
        _moment("submitted_at"),
    )
    _state_table(
        "controller",
        "incidents",
        sa.Column("job", sa.Text, nullable=False),
        _moment("opened_at"),
        _moment("closed_at", nullable=True),
        sa.Column("symptom", sa.Text, nullable=False),
        sa.Column("outcome", sa.Text),
        sa.Column("attempts", sa.Integer, nullable=False),
        sa.Column("summary", sa.Text, nullable=False),
    )
    _state_table(
        "standby",
        "nodes",
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("job", sa.Text),
        sa.Column("reason", sa.Text),
        _moment("blocked_until", nullable=True),
        sa.Column("epoch", sa.BigInteger, nullable=False),
    )
    _state_table(
        "standby",
        "claims",
        sa.Column("job", sa.Text, nullable=False),
        sa.Column("wanted", sa.Integer, nullable=False),
        _moment("granted_at", nullable=True),
        _moment("requested_at"),
    )
    _state_table(
        "ckpt",
        "steps",
        sa.Column("job", sa.Text, nullable=False),
        sa.Column("step", sa.BigInteger, nullable=False),
        sa.Column("path", sa.Text, nullable=False),
        sa.Column("bytes", sa.BigInteger, nullable=False),
        _moment("saved_at"),
    )


def _state_table(schema: str, name: str, *columns: sa.Column) -> None:
    op.create_table(
        name,
        sa.Column("key", sa.Text, primary_key=True),
        sa.Column("version", sa.BigInteger, nullable=False),
        sa.Column("body", JSONB, nullable=False),
        _moment("updated_at", default_now=True),
        *columns,
        schema=schema,
    )


def _moment(name: str, *, nullable: bool = False, default_now: bool = False) -> sa.Column:
    default = sa.func.now() if default_now else None
    return sa.Column(name, sa.DateTime(timezone=True), nullable=nullable, server_default=default)
