"""Models of healthy telemetry, and words for what is measured and found.

Revision ID: 0018
Revises: 0017
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None

OTHERWISE = "else body->>'reason' end"
WORDS = """when 'suspects_tested' then coalesce(nullif(body->>'reason', ''), 'the suspects are tested')
    when 'telemetry_anomaly' then coalesce(nullif(body->>'reason', ''), 'telemetry is not as in healthy training')
    when 'telemetry_measured' then concat('what ', jsonb_array_length(body->'ranks'), ' ranks use')
    """

TELEMETRY = """
create view historian.telemetry as
select e.job, e.generation, e.node, r.rank, e.at, r.cpu_cores, r.memory_bytes, r.io_bytes_per_s, r.sent_bytes_per_s,
       r.collectives_per_s
from historian.events e
cross join lateral jsonb_to_recordset(e.body->'ranks') as r(
    rank bigint, cpu_cores float8, memory_bytes bigint, io_bytes_per_s float8, sent_bytes_per_s float8,
    collectives_per_s float8)
where e.type = 'telemetry_measured'
"""


def upgrade() -> None:
    op.create_table(
        "telemetry_models",
        sa.Column("key", sa.Text, primary_key=True),
        sa.Column("version", sa.BigInteger, nullable=False),
        sa.Column("body", JSONB, nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False, server_default=sa.func.now()),
        sa.Column("made_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("windows", sa.BigInteger, nullable=False),
        sa.Column("accuracy", sa.Float),
        sa.Column("precision", sa.Float),
        sa.Column("recall", sa.Float),
        schema="analyzer",
    )
    op.execute("grant select, insert, update, delete on analyzer.telemetry_models to holdfast_analyzer")
    op.execute("grant select on analyzer.telemetry_models to holdfast_reader")
    op.execute(TELEMETRY)
    op.execute("comment on view historian.telemetry is 'what each rank used: cores, memory, input and output, network'")
    op.execute("grant select on historian.telemetry to holdfast_reader")
    connection = op.get_bind()
    function = "select pg_get_functiondef('historian.in_words(text, jsonb)'::regprocedure)"
    text: str = connection.exec_driver_sql(function).scalar_one()
    connection.exec_driver_sql(text.replace(OTHERWISE, WORDS + OTHERWISE))
