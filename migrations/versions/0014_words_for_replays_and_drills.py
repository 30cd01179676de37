"""Words for what a rank computed in a replay, and for faults that were made on purpose.

Revision ID: 0014
Revises: 0013
"""

from __future__ import annotations

from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None

OTHERWISE = "else body->>'reason' end"
WORDS = """when 'replay_result' then concat(
        'rank ', body->>'rank', ' of its group replayed to step ', body->'replay'->>'last',
        case when body->'replay'->>'bad_step' is not null then concat(
            ', bad numbers at step ', body->'replay'->>'bad_step') end)
    when 'fault_injected' then concat_ws(' ', body->>'fault', body->>'state', 'on purpose by', body->>'by')
    """


def upgrade() -> None:
    """The function as it is, with these words as well."""
    connection = op.get_bind()
    function = "select pg_get_functiondef('historian.in_words(text, jsonb)'::regprocedure)"
    text: str = connection.exec_driver_sql(function).scalar_one()
    connection.exec_driver_sql(text.replace(OTHERWISE, WORDS + OTHERWISE))
