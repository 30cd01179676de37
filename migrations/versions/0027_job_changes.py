"""Changes of a job since its row was last written whole.

Revision ID: 0027
Revises: 0026
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0027"
down_revision = "0026"
branch_labels = None
depends_on = None

READER = "holdfast_reader"


def upgrade() -> None:
    op.create_table(
        "job_changes",
        sa.Column("key", sa.Text, primary_key=True),
        sa.Column("version", sa.BigInteger, primary_key=True),
        sa.Column("body", JSONB, nullable=False),
        schema="controller",
    )
    # As of jobs: a body holds the values of --env.
    op.execute(f"revoke select on controller.job_changes from {READER}")
    op.execute(f"grant select (key, version) on controller.job_changes to {READER}")
