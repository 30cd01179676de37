"""Words for what is seen of a job that stands still, and for who is suspected.

Revision ID: 0016
Revises: 0015
"""

from __future__ import annotations

from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None

OTHERWISE = "else body->>'reason' end"
WORDS = """when 'stack_dump' then concat(
        'stacks of ', jsonb_array_length(body->'processes'), ' processes in ',
        round((body->>'took_s')::numeric, 1), ' s')
    when 'collective_trace' then concat('collectives of ', jsonb_array_length(body->'ranks'), ' ranks')
    when 'hang_suspected' then concat(
        'no progress for ', round((body->>'still_s')::numeric, 1), ' s in phase ', body->>'phase',
        ' behind step ', body->>'step', '; its processes are traced')
    when 'job_traced' then concat(
        coalesce(body->>'processes', '0'), ' processes traced: ',
        coalesce(body->>'summary', 'nobody is suspected'),
        case when body->>'asked_by' is not null then concat(' (asked by ', body->>'asked_by', ')') end)
    when 'hang_found' then concat(
        'hangs since ', round((body->>'still_s')::numeric, 1), ' s behind step ', body->>'step', ': ',
        coalesce(body->>'summary', 'nobody is named'))
    """


def upgrade() -> None:
    """The function as it is, with these words as well."""
    connection = op.get_bind()
    function = "select pg_get_functiondef('historian.in_words(text, jsonb)'::regprocedure)"
    text: str = connection.exec_driver_sql(function).scalar_one()
    connection.exec_driver_sql(text.replace(OTHERWISE, WORDS + OTHERWISE))
