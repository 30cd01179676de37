"""Words for how copies on other nodes go on, which is a metric now.

Revision ID: 0010
Revises: 0009
"""

from __future__ import annotations

from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

BACKED_UP = "when 'shards_backed_up' then"
MEASURED = """when 'copies_measured' then concat(
        'step ', body->>'step', ' is on ', body->>'keeper', ' as well',
        case when body->>'skipped' is not null then concat(', ', body->>'skipped', ' steps were skipped') end)
    """


def upgrade() -> None:
    """The function as it is, with these words before those for the action."""
    definition = op.get_bind().exec_driver_sql(
        "select pg_get_functiondef('historian.in_words(text, jsonb)'::regprocedure)"
    )
    text: str = definition.scalar_one()
    op.get_bind().exec_driver_sql(text.replace(BACKED_UP, MEASURED + BACKED_UP))
