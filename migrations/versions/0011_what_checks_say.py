"""Words for what checks of a node say, and an inspection as the first sign of a failure.

Revision ID: 0011
Revises: 0010
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

OTHERWISE = "else body->>'reason' end"
WORDS = """when 'inspection' then concat_ws(' ',
        body->>'check', body->>'device', case body->>'state' when 'alert' then null else body->>'state' end,
        case when body->>'scope' = 'host' then '(the whole machine)' end,
        concat('[', body->>'confidence', ']'), coalesce(nullif(body->>'detail', ''), body->'lines'->>0))
    when 'diagnostic_result' then concat_ws(' ',
        body->>'test', body->>'device', (
            select concat('with ', string_agg(p, ', ')) from jsonb_array_elements_text(body->'peers') p
            having count(*) > 0),
        body->>'status',
        case when body->>'value' is not null then concat(
            round((body->>'value')::numeric, 3), ' ', body->>'unit') end,
        body->>'detail')
    """

EVIDENCE = "'process_exited', 'node_lost', 'node_departed', 'deadline_passed', 'bad_number'"


def upgrade() -> None:
    """The function and the view as they are, with more in them; and who reads may see which rungs were taken."""
    op.execute("grant select (body) on controller.incidents to holdfast_reader")
    connection = op.get_bind()
    function = "select pg_get_functiondef('historian.in_words(text, jsonb)'::regprocedure)"
    text: str = connection.exec_driver_sql(function).scalar_one()
    connection.exec_driver_sql(text.replace(OTHERWISE, WORDS + OTHERWISE))
    view = _view_of("0009_when_noticed.py")
    connection.exec_driver_sql(view.replace(EVIDENCE, f"{EVIDENCE}, 'inspection'"))


def _view_of(migration: str) -> str:
    spec = importlib.util.spec_from_file_location("earlier", Path(__file__).with_name(migration))
    assert spec and spec.loader
    earlier = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(earlier)
    assert EVIDENCE in earlier.GENERATIONS
    text: str = earlier.GENERATIONS
    return text
