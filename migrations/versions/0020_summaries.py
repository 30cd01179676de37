"""The sentence for each event beside it, written by the historian; and the digest of the views that are in place.

Revision ID: 0020
Revises: 0019
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("events", sa.Column("summary", sa.Text), schema="historian")
    op.create_table("holdfast_views", sa.Column("sha256", sa.Text, nullable=False), schema="public")
