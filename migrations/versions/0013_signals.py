"""What training logs and output say, and how fast jobs train: two views, and words for the new events.

Revision ID: 0013
Revises: 0012
"""

from __future__ import annotations

from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None

THROUGHPUT = """
create view historian.throughput as
select e.job, e.generation, e.at, (e.body->>'step')::bigint as step,
       historian.real((e.body->>'step_s')::numeric) as step_s,
       historian.real((e.body->>'tokens_per_s')::numeric) as tokens_per_s,
       historian.real((e.body->>'mfu')::numeric) as mfu,
       coalesce((e.body->>'is_logged')::boolean, false) as is_logged
from historian.events e
where e.type = 'throughput_measured'
"""

LOGGED_NUMBERS = """
create view historian.logged_numbers as
select e.job, e.generation, e.node, s.rank, s.step, s.logged_step, s.logged_at, historian.real(s.loss) as loss,
       historian.real(s.grad_norm) as grad_norm, historian.real(s.tokens_per_s) as tokens_per_s,
       historian.real(s.mfu) as mfu, historian.real(s.learning_rate) as learning_rate, s.not_finite,
       e.body->>'kind' as kind, e.body->>'path' as path
from historian.events e
cross join lateral jsonb_to_recordset(e.body->'samples') as s(
    rank bigint, step bigint, logged_step bigint, logged_at timestamptz, loss numeric, grad_norm numeric,
    tokens_per_s numeric, mfu numeric, learning_rate numeric, not_finite jsonb)
where e.type = 'numbers_logged'
"""

VIEWS = {
    "throughput": (THROUGHPUT, "how fast jobs trained: seconds a step, tokens a second of the whole job, MFU"),
    "logged_numbers": (LOGGED_NUMBERS, "what ranks wrote into TensorBoard or W&B logs, and the step it belongs to"),
}

WORDS = """    when 'log_signature' then concat(
        'rank ', body->>'rank', ' printed: ', body->'lines'->>0,
        case when body->>'count' is not null then concat(' (', body->>'count', ' such lines)') end)
    when 'numbers_logged' then concat(
        jsonb_array_length(body->'samples'), ' readings of ', body->>'path')
    when 'throughput_measured' then concat(
        'a step takes ', round((body->>'step_s')::numeric, 3), ' s',
        case when body->>'tokens_per_s' is not null then concat(
            ', ', round((body->>'tokens_per_s')::numeric), ' tokens/s') end,
        case when body->>'mfu' is not null then concat(', MFU ', round(100 * (body->>'mfu')::numeric, 1), ' %') end)
    when 'mfu_declined' then concat(
        'training at ', round(100 * (body->>'share_left')::numeric), ' % of its pace since step ',
        body->>'since_step')
"""
OTHERWISE = "    else body->>'reason' end"
BAD_NUMBER_END = "             else 'no step is certified' end)"
TOLD_BY = """             else 'no step is certified' end,
        case when body->>'told_by' is not null then concat(
            ' (', body->>'tag', ' at ', body->>'logged_step', ' of a ', body->>'told_by', ' log)') end)"""


def upgrade() -> None:
    for name, (definition, line) in VIEWS.items():
        op.execute(definition)
        op.execute(f"comment on view historian.{name} is $${line}$$")
        op.execute(f"grant select on historian.{name} to holdfast_reader")
        op.execute(f"alter view historian.{name} owner to holdfast_historian")
    definition = op.get_bind().exec_driver_sql(
        "select pg_get_functiondef('historian.in_words(text, jsonb)'::regprocedure)"
    )
    text: str = definition.scalar_one()
    op.get_bind().exec_driver_sql(text.replace(OTHERWISE, WORDS + OTHERWISE).replace(BAD_NUMBER_END, TOLD_BY))
