"""Words for jobs that got slow: when, what their ranks spend their time with, and who is at fault.

Revision ID: 0017
Revises: 0016
"""

from __future__ import annotations

from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None

OTHERWISE = "else body->>'reason' end"
PACES = "round((body->>'before_s')::numeric, 3), ' s an iteration, now ', round((body->>'after_s')::numeric, 3), ' s'"
WORDS = f"""when 'fail_slow_onset' then concat('got slower: ', {PACES})
    when 'fail_slow_relieved' then concat(
        case when (body->>'is_over')::boolean then 'is as fast as it was: ' else 'got faster: ' end, {PACES})
    when 'fail_slow_located' then concat(
        coalesce(body->>'summary', 'nobody is suspected'),
        case when (body->>'is_validated')::boolean then ' (tested)' else ' (not tested)' end,
        case when body->>'asked_by' is not null then concat(' (asked by ', body->>'asked_by', ')') end)
    when 'collectives_profiled' then concat(
        'how ', jsonb_array_length(body->'ranks'), ' ranks spent their last iterations')
    when 'slowness_tested' then concat(
        'tested while training was held: matrix products on ', coalesce(jsonb_array_length(body->'compute_s'), 0),
        ' ranks, ', coalesce(jsonb_array_length(body->'transfers'), 0), ' links')
    """


def upgrade() -> None:
    """The function as it is, with these words as well."""
    connection = op.get_bind()
    function = "select pg_get_functiondef('historian.in_words(text, jsonb)'::regprocedure)"
    text: str = connection.exec_driver_sql(function).scalar_one()
    connection.exec_driver_sql(text.replace(OTHERWISE, WORDS + OTHERWISE))
