"""Backup plans and the steps that nodes keep in memory; who reads everything no longer reads secrets.

Revision ID: 0005
Revises: 0004
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

READER = "holdfast_reader"

RESTORABLE = """
create view ckpt.restorable as
select job, 'disk' as tier, step, (body->>'generation')::bigint as generation, saved_at as known_at, path
from ckpt.steps
union all
-- Node ranks report one after the other: what the last of them has, all have.
select s.job, 'memory', min(s.step), s.generation, max(s.reported_at), null
from ckpt.plans p join ckpt.shards s on s.job = p.key
group by s.job, s.generation, p.nnodes
having count(*) = p.nnodes
"""

# A body holds the values of --env and the token of the job, and so does an order on its way to the bus.
OPEN_TO_THE_READER = {
    "jobs": "key, version, updated_at, phase, generation, incident, exit_code, submitted_at",
    "outbox": "position, id, subject, headers, said_at, published_at",
}


def upgrade() -> None:
    _state_table(
        "plans",
        sa.Column("generation", sa.BigInteger, nullable=False),
        sa.Column("nnodes", sa.Integer, nullable=False),
        sa.Column("strategy", sa.Text, nullable=False),
        sa.Column("protects", sa.Text, nullable=False),
        sa.Column("every", sa.Integer, nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("planned_at", sa.DateTime(timezone=True), nullable=False),
    )
    _state_table(
        "shards",
        sa.Column("job", sa.Text, nullable=False),
        sa.Column("node_rank", sa.Integer, nullable=False),
        sa.Column("node", sa.Text, nullable=False),
        sa.Column("keeper", sa.Text, nullable=False),
        sa.Column("step", sa.BigInteger, nullable=False),
        sa.Column("generation", sa.BigInteger, nullable=False),
        sa.Column("bytes", sa.BigInteger, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("reported_at", sa.DateTime(timezone=True), nullable=False),
    )
    op.execute(RESTORABLE)
    op.execute("comment on view ckpt.restorable is 'the steps that a job can go on from, on disk and in memory'")
    op.execute(f"grant select on ckpt.restorable to {READER}")
    for table, columns in OPEN_TO_THE_READER.items():
        op.execute(f"revoke select on controller.{table} from {READER}")
        op.execute(f"grant select ({columns}) on controller.{table} to {READER}")


def _state_table(name: str, *columns: sa.Column) -> None:
    op.create_table(
        name,
        sa.Column("key", sa.Text, primary_key=True),
        sa.Column("version", sa.BigInteger, nullable=False),
        sa.Column("body", JSONB, nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False, server_default=sa.func.now()),
        *columns,
        schema="ckpt",
    )
    op.execute(f"grant select, insert, update, delete on ckpt.{name} to holdfast_ckpt")
    op.execute(f"grant select on ckpt.{name} to {READER}")
