"""Secrets of jobs lie in a table of their own, and the states of jobs have their names only.

Revision ID: 0033
Revises: 0032
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0033"
down_revision = "0032"
branch_labels = None
depends_on = None

READER = "holdfast_reader"

# The specification in force is in the newest change that has one, else in the row. A job that has ended needs none.
_MOVE = """
insert into controller.job_secrets (key, version, body)
select key, 1, jsonb_build_object('env', coalesce(spec->'env', '{}'), 'token', coalesce(spec->>'token', ''))
from (
    select j.key, coalesce(
        (select c.body #> '{in,spec,set}' from controller.job_changes c
         where c.key = j.key and c.body #> '{in,spec,set}' is not null order by c.version desc limit 1),
        j.body->'spec') as spec
    from controller.jobs j where j.exit_code is null
) present
where coalesce(spec->'env', '{}') <> '{}' or coalesce(spec->>'token', '') <> ''
"""


def _mask(table: str, path: str) -> str:
    spec = f"body #> '{path}'"
    return f"""
    update controller.{table} set body = jsonb_set(body, '{path}', {spec}
        || case when {spec} ? 'env' then jsonb_build_object('env', coalesce(
               (select jsonb_object_agg(name, '***') from jsonb_object_keys({spec} -> 'env') as name), '{{}}'))
           else '{{}}' end
        || case when {spec} ? 'token' then jsonb_build_object('token', '***') else '{{}}' end)
    where {spec} is not null
    """


def upgrade() -> None:
    op.create_table(
        "job_secrets",
        sa.Column("key", sa.Text, primary_key=True),
        sa.Column("version", sa.BigInteger, nullable=False),
        sa.Column("body", JSONB, nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False, server_default=sa.func.now()),
        schema="controller",
    )
    op.execute(f"revoke select on controller.job_secrets from {READER}")
    op.execute(f"grant select (key, version, updated_at) on controller.job_secrets to {READER}")
    op.execute(_MOVE)
    op.execute(_mask("jobs", "{spec}"))
    op.execute(_mask("job_changes", "{in,spec,set}"))
