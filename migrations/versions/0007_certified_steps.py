"""Steps that are known to be clean, and numbers that are none: what is found of them, said of them and kept for them.

Revision ID: 0007
Revises: 0006
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

READER = "holdfast_reader"

RESTORABLE = """
create or replace view ckpt.restorable as
select r.job, r.tier, r.step, r.generation, r.known_at, r.path, coalesce(r.step <= c.step, false) as certified
from (
    select job, 'disk' as tier, step, (body->>'generation')::bigint as generation, saved_at as known_at, path
    from ckpt.steps
    union all
    -- Node ranks report one after the other: what the last of them has, all have.
    select s.job, 'memory', min(s.step), s.generation, max(s.reported_at), null
    from ckpt.plans p join ckpt.shards s on s.job = p.key
    group by s.job, s.generation, p.nnodes
    having count(*) = p.nnodes
    union all
    select key, 'memory', held_step, held_generation, updated_at, null
    from ckpt.plans
    where held_step is not null
) r
left join ckpt.certified c on c.key = r.job
"""

STEPS = """
create or replace view historian.steps as
select e.job, e.generation, e.node, s.rank, s.step, s.ended_at, historian.real(s.duration_s) as duration_s,
       historian.real(s.loss) as loss, historian.real(s.grad_norm) as grad_norm, s.tokens, s.not_finite
from historian.events e
cross join lateral jsonb_to_recordset(e.body->'samples') as s(
    rank bigint, step bigint, ended_at timestamptz, duration_s numeric, loss numeric, grad_norm numeric, tokens bigint,
    not_finite jsonb)
where e.type = 'steps_measured'
"""

WORDS = """
    when 'bad_number' then concat(
        replace(body->>'quantity', '_', ' '), case when body->>'rank' is not null then concat(
            ' of rank ', body->>'rank') end,
        case body->>'kind' when 'jump' then concat(
                 ' rose to ', body->>'value', ', its level was ', body->>'level')
             else concat(' is ', body->>'kind') end,
        ' at step ', body->>'step', ', ',
        case when body->>'certified' is not null then concat('certified up to step ', body->>'certified')
             else 'no step is certified' end)
    when 'steps_certified' then concat('certified up to step ', body->>'step')
"""
OTHERWISE = "    else body->>'reason' end"
FROM_STEP = "concat(' from step ', body->>'restore_step') end"
AT_MOST = "case when body->>'restore_at_most' is not null then concat(', none after ', body->>'restore_at_most') end"

FAULTS = "'deadline_passed'::text]"


def upgrade() -> None:
    _state_table(
        "analyzer",
        "known",
        sa.Column("generation", sa.BigInteger, nullable=False),
        sa.Column("certified_step", sa.BigInteger),
    )
    _state_table(
        "ckpt",
        "certified",
        sa.Column("generation", sa.BigInteger, nullable=False),
        sa.Column("step", sa.BigInteger, nullable=False),
        sa.Column("certified_at", sa.DateTime(timezone=True), nullable=False),
    )
    for column in ("held_step", "held_generation", "coming_step"):
        op.add_column("plans", sa.Column(column, sa.BigInteger), schema="ckpt")
    op.execute(RESTORABLE)
    op.execute(STEPS)
    in_words = _definition("pg_get_functiondef('historian.in_words(text, jsonb)'::regprocedure)")
    in_words = in_words.replace(OTHERWISE, WORDS.strip("\n") + "\n" + OTHERWISE)
    _run(in_words.replace(FROM_STEP, f"{FROM_STEP}, {AT_MOST}"))
    generations = _definition("pg_get_viewdef('historian.generations'::regclass)")
    _run(f"create or replace view historian.generations as {generations.replace(FAULTS, FAULTS[:-1] + _BAD_NUMBER)}")


_BAD_NUMBER = ", 'bad_number'::text]"


def _definition(of: str) -> str:
    """What is there now: only some words of it change."""
    text: str = op.get_bind().exec_driver_sql(f"select {of}").scalar_one()
    return text


def _run(statement: str) -> None:
    # Percent signs in it are none of the driver's business.
    op.get_bind().exec_driver_sql(statement)


def _state_table(schema: str, name: str, *columns: sa.Column) -> None:
    op.create_table(
        name,
        sa.Column("key", sa.Text, primary_key=True),
        sa.Column("version", sa.BigInteger, nullable=False),
        sa.Column("body", JSONB, nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False, server_default=sa.func.now()),
        *columns,
        schema=schema,
    )
    op.execute(f"grant select, insert, update, delete on {schema}.{name} to holdfast_{schema}")
    op.execute(f"grant select on {schema}.{name} to {READER}")
