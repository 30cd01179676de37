"""Answers of stop-time tests that several machines agreed on.

Revision ID: 0015
Revises: 0014
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "reference_digests",
        sa.Column("key", sa.Text, primary_key=True),
        sa.Column("version", sa.BigInteger, nullable=False),
        sa.Column("body", JSONB, nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False, server_default=sa.func.now()),
        sa.Column("test", sa.Text, nullable=False),
        sa.Column("hardware", sa.Text, nullable=False),
        sa.Column("program", sa.Text, nullable=False),
        sa.Column("digest", sa.Text, nullable=False),
        sa.Column("agreed_at", sa.DateTime(timezone=True), nullable=False),
        schema="controller",
    )
    op.execute("grant select, insert, update, delete on controller.reference_digests to holdfast_controller")
    op.execute("grant select on controller.reference_digests to holdfast_reader")
