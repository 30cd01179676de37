"""Messages are known by more than their id: the subject proves who published them.

Revision ID: 0025
Revises: 0022
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0025"
down_revision = "0022"
branch_labels = None
depends_on = None

DECIDING = ("controller", "analyzer", "standby", "ckpt")


def upgrade() -> None:
    for schema in DECIDING:
        # Rows of before have no subject: they count for every message with their id.
        op.add_column("inbox", sa.Column("subject", sa.Text, nullable=False, server_default=""), schema=schema)
        op.drop_constraint("inbox_pkey", "inbox", schema=schema)
        op.create_primary_key("inbox_pkey", "inbox", ["id", "subject"], schema=schema)
    op.drop_constraint("events_pkey", "events", schema="historian")
    op.create_index(
        "events_once",
        "events",
        ["id", "at", "type", "node"],
        unique=True,
        schema="historian",
        postgresql_nulls_not_distinct=True,
    )
