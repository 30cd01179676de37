"""The reader can neither take the server's locks, which are a fixed number for all sessions, nor fill its disk.

Advisory locks and messages in the write-ahead log are open to all by default. One statement could take every lock that
the server has; then no service writes, and none connects. Each nested savepoint that has written holds one too, so
sessions of the reader with many locks are ended.

Revision ID: 0030
Revises: 0029
"""

from __future__ import annotations

from alembic import op

revision = "0030"
down_revision = "0029"
branch_labels = None
depends_on = None

READER = "holdfast_reader"
HISTORIAN = "holdfast_historian"
LOCKS_MAX = 1000
"""Of about 13,000. A query over all partitions of the history takes some hundred."""
TEMPORARY_FILES = "4GB"
"""Of one session, for what a query sorts."""

CLOSE = """
do $$
declare called regprocedure;
begin
    for called in
        select oid::regprocedure from pg_proc
        where pronamespace = 'pg_catalog'::regnamespace
          and (proname like '%advisory%lock%' or proname = 'pg_logical_emit_message')
    loop
        execute format('revoke execute on function %s from public', called);
    end loop;
end $$
"""

END_LONG_READS = f"""
create or replace function historian.end_long_reads(transaction_max interval, idle_max interval) returns bigint
language sql security definer set search_path = pg_catalog, pg_temp
as $$
    select count(*) filter (where pg_terminate_backend(pid))
    from pg_stat_activity
    where usename = '{READER}' and datname = current_database()
      and (clock_timestamp() - xact_start > transaction_max
           or state = 'idle' and clock_timestamp() - state_change > idle_max
           or pid in (
               select pid from pg_locks where granted group by pid
               having count(*) > {LOCKS_MAX} or bool_or(locktype = 'advisory')
           ))
$$
"""


def upgrade() -> None:
    op.execute(CLOSE)
    op.execute(f"grant execute on function pg_advisory_xact_lock(bigint) to {HISTORIAN}")
    op.execute(END_LONG_READS)
    op.execute(f"alter role {READER} set temp_file_limit = '{TEMPORARY_FILES}'")
