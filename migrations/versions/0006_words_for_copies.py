"""Words for what is said of copies on other nodes.

Revision ID: 0006
Revises: 0005
"""

from __future__ import annotations

from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

WORDS = """
    when 'shards_backed_up' then concat('step ', body->>'step', ' is on ', body->>'keeper', ' as well')
    when 'shards_fetched' then concat(
        'step ', body->>'step', ' of rank ', (
            select string_agg(r, ', ') from jsonb_array_elements_text(body->'ranks') r), ' fetched from ',
        body->>'keeper', ' in ', round((body->>'took_s')::numeric, 3), ' s')
    when 'shard_damaged' then concat(
        'step ', body->>'step', ' of rank ', body->>'rank', ' is damaged in the memory of ', body->>'held_by',
        ': ', body->>'detail')
"""
OTHERWISE = "    else body->>'reason' end"


def upgrade() -> None:
    """The function as it is, with these words before those for everything else."""
    definition = op.get_bind().exec_driver_sql(
        "select pg_get_functiondef('historian.in_words(text, jsonb)'::regprocedure)"
    )
    text: str = definition.scalar_one()
    op.get_bind().exec_driver_sql(text.replace(OTHERWISE, WORDS.strip("\n") + "\n" + OTHERWISE))
