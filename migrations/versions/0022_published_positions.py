"""The position in its stream of each published message, to notice what the bus loses afterwards.

Revision ID: 0022
Revises: 0024
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0022"
down_revision = "0024"
branch_labels = None
depends_on = None

DECIDING = ("controller", "analyzer", "standby", "ckpt")


def upgrade() -> None:
    for schema in DECIDING:
        op.add_column("outbox", sa.Column("stream", sa.Text), schema=schema)
        op.add_column("outbox", sa.Column("sequence", sa.BigInteger), schema=schema)
        op.create_index(
            "outbox_published",
            "outbox",
            ["stream", "sequence"],
            schema=schema,
            postgresql_where=sa.text("sequence IS NOT NULL"),
        )
    op.execute("grant select (stream, sequence) on controller.outbox to holdfast_reader")
