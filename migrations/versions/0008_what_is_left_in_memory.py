"""A step in memory is offered only while the job has one of the nodes that were said to hold it.

Revision ID: 0008
Revises: 0007
"""

from __future__ import annotations

from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

RESTORABLE = """
create or replace view ckpt.restorable as
select r.job, r.tier, r.step, r.generation, r.known_at, r.path, coalesce(r.step <= c.step, false) as certified
from (
    select job, 'disk' as tier, step, (body->>'generation')::bigint as generation, saved_at as known_at, path
    from ckpt.steps
    union all
    -- Node ranks report one after the other: what the last of them has, all have. A node that a job does without is
    -- lost as a rule, and with it what only it had.
    select s.job, 'memory', min(s.step), s.generation, max(s.reported_at), null
    from ckpt.plans p join ckpt.shards s on s.job = p.key
    where p.body->'layout'->'nodes' ?| array[s.node, s.keeper]
    group by s.job, s.generation, p.nnodes
    having count(*) = p.nnodes
    union all
    select key, 'memory', held_step, held_generation, updated_at, null
    from ckpt.plans
    where held_step is not null
) r
left join ckpt.certified c on c.key = r.job
"""


def upgrade() -> None:
    op.get_bind().exec_driver_sql(RESTORABLE)
