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
       jsonb_build_object('job', job, 'generations', jsonb_object_agg(generation::text, nodes)), max(generation)
from (
    select distinct on (e.job, e.generation) e.job, e.generation, coalesce(e.body->'nodes', (
               select jsonb_agg(names.name)
               from jsonb_array_elements(e.body->'groups') as groups(names),
                    jsonb_array_elements(groups.names) as names(name)
           ), '[]') as nodes
    from historian.events e
    where e.type in ('generation_started', 'checks_started', 'replay_started')
      and e.job is not null and e.generation is not null
      and not exists (select from historian.events f where f.type = 'job_finished' and f.job = e.job)
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
