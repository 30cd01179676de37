"""Limits of the reader that it cannot lift: a number of connections, and a function that ends its long reads.

A user may change the settings of its own role and sessions, so `statement_timeout` protects from mistakes only.

Revision ID: 0024
Revises: 0020
"""

from __future__ import annotations

from alembic import op

revision = "0024"
down_revision = "0020"
branch_labels = None
depends_on = None

READER = "holdfast_reader"
HISTORIAN = "holdfast_historian"
CONNECTIONS_MAX = 20

END_LONG_READS = f"""
create function historian.end_long_reads(transaction_max interval, idle_max interval) returns bigint
language sql security definer set search_path = pg_catalog, pg_temp
as $$
    select count(*) filter (where pg_terminate_backend(pid))
    from pg_stat_activity
    where usename = '{READER}' and datname = current_database()
      and (clock_timestamp() - xact_start > transaction_max
           or state = 'idle' and clock_timestamp() - state_change > idle_max
           or pid in (select pid from pg_locks where locktype = 'advisory' and granted))
$$
"""

# Large objects are open to all by default, and would let the reader fill the disk.
CLOSE_LARGE_OBJECTS = """
revoke execute on function lo_creat(integer), lo_create(oid), lo_from_bytea(oid, bytea), lo_put(oid, bigint, bytea),
    lowrite(integer, bytea) from public
"""


def upgrade() -> None:
    op.execute(f"alter role {READER} connection limit {CONNECTIONS_MAX}")
    op.execute(f"alter role {READER} set idle_session_timeout = '10min'")
    op.execute(END_LONG_READS)
    op.execute("revoke execute on function historian.end_long_reads(interval, interval) from public")
    op.execute(f"grant execute on function historian.end_long_reads(interval, interval) to {HISTORIAN}")
    op.execute(CLOSE_LARGE_OBJECTS)
