"""Analyzer and ckpt coordinator know the nodes of each job's generations.

Revision ID: 0031
Revises: 0030
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0031"
down_revision = "0030"
branch_labels = None
depends_on = None

# The services have received the beginnings of generations that run now, and do not receive them again.
_OF_PRESENT_JOBS = """
insert into {schema}.job_nodes (key, version, body, generation)
select job, 1,
       jsonb_build_object('job', job, 'generation', max(newest), 'nodes', jsonb_object_agg(node, newest)), max(newest)
from (
    select e.job, n.node, max(e.generation) as newest
    from historian.events e, jsonb_array_elements_text(e.body->'nodes') as n(node)
    where e.type in ('generation_started', 'checks_started') and e.job is not null and e.generation is not null
      and not exists (select from historian.events f where f.type = 'job_finished' and f.job = e.job)
    group by e.job, n.node
) begun
group by job
"""


def upgrade() -> None:
    for schema in ("analyzer", "ckpt"):
        op.create_table(
            "job_nodes",
            sa.Column("key", sa.Text, primary_key=True),
            sa.Column("version", sa.BigInteger, nullable=False),
            sa.Column("body", JSONB, nullable=False),
            sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False, server_default=sa.func.now()),
            sa.Column("generation", sa.BigInteger, nullable=False),
            schema=schema,
        )
        op.execute(_OF_PRESENT_JOBS.format(schema=schema))
