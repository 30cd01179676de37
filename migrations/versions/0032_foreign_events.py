"""The historian keeps apart what nodes publish about jobs that they do not belong to.

Revision ID: 0032
Revises: 0031
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0032"
down_revision = "0031"
branch_labels = None
depends_on = None

_BEGUN = """
insert into historian.job_nodes (job, node, generation, at)
select e.job, n.node, max(e.generation), max(e.at)
from historian.events e, jsonb_array_elements_text(e.body->'nodes') as n(node)
where e.type in ('generation_started', 'checks_started') and e.job is not null and e.generation is not null
group by e.job, n.node
"""


def upgrade() -> None:
    op.create_table(
        "job_nodes",
        sa.Column("job", sa.Text, primary_key=True),
        sa.Column("node", sa.Text, primary_key=True),
        sa.Column("generation", sa.BigInteger, nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        schema="historian",
        comment="the nodes of each job, each with the newest generation that it belongs to",
    )
    op.execute(_BEGUN)
    op.execute("create table historian.foreign_events (like historian.events including defaults)")
    op.execute(
        "comment on table historian.foreign_events is "
        "'events about a job from nodes that do not belong to it; no view has them'"
    )
    op.create_index(
        "foreign_events_once",
        "foreign_events",
        ["id", "at", "type", "node"],
        unique=True,
        postgresql_nulls_not_distinct=True,
        schema="historian",
    )
    op.create_index("foreign_events_job", "foreign_events", ["job"], schema="historian")
    op.create_index("foreign_events_recorded_at", "foreign_events", ["recorded_at"], schema="historian")
