"""Versions of the code of jobs: what they are made of, and what became of them.

Revision ID: 0012
Revises: 0011
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None

READER = "holdfast_reader"
TABLES = ("code_versions", "code_contents", "code_manifests")

BACKED_UP = "when 'shards_backed_up' then"
WORDS = """when 'code_in_place' then concat(
        'code ', left(body->>'version', 12), ' is in place: ', body->>'files', ' files, ', body->>'fetched_bytes',
        ' bytes came over the bus')
    when 'code_not_in_place' then concat('code ', left(body->>'version', 12), ': ', body->>'detail')
    """


def upgrade() -> None:
    op.create_table(
        "code_versions",
        sa.Column("key", sa.Text, primary_key=True),
        sa.Column("version", sa.BigInteger, nullable=False),
        sa.Column("body", JSONB, nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False, server_default=sa.func.now()),
        sa.Column("job", sa.Text, nullable=False),
        sa.Column("code", sa.Text, nullable=False),
        sa.Column("number", sa.BigInteger, nullable=False),
        sa.Column("verdict", sa.Text, nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        schema="controller",
    )
    op.create_table(
        "code_contents",
        sa.Column("sha256", sa.Text, primary_key=True),
        sa.Column("content", sa.LargeBinary, nullable=False),
        sa.Column("kept_at", sa.DateTime(timezone=True), nullable=False, server_default=sa.func.now()),
        schema="controller",
    )
    op.create_table(
        "code_manifests",
        sa.Column("version", sa.Text, primary_key=True),
        sa.Column("kept_at", sa.DateTime(timezone=True), nullable=False, server_default=sa.func.now()),
        schema="controller",
    )
    for column in ("code_version", "code_waits"):
        op.add_column("jobs", sa.Column(column, sa.Text), schema="controller")
    op.execute(f"grant select (code_version, code_waits) on controller.jobs to {READER}")
    for table in TABLES:
        op.execute(f"grant select, insert, update, delete on controller.{table} to holdfast_controller")
        op.execute(f"grant select on controller.{table} to {READER}")
    _add_words()


def _add_words() -> None:
    """The function as it is, with these words before those for another action."""
    definition = op.get_bind().exec_driver_sql(
        "select pg_get_functiondef('historian.in_words(text, jsonb)'::regprocedure)"
    )
    text: str = definition.scalar_one()
    op.get_bind().exec_driver_sql(text.replace(BACKED_UP, WORDS + BACKED_UP))
