"""The historian makes and drops partitions by functions, and owns no table; no service takes all connections.

The owner of a table gives it constraints, triggers and functions of its own. They run as the user that writes, which
is the administrator when a backup is restored.

Revision ID: 0034
Revises: 0033
"""

from __future__ import annotations

from alembic import op

revision = "0034"
down_revision = "0033"
branch_labels = None
depends_on = None

HISTORIAN = "holdfast_historian"
READER = "holdfast_reader"
SERVICES = ("controller", "analyzer", "standby", "ckpt", "historian")
CONNECTIONS_MAX = 30
"""Of about 197. A service uses five, and twice as many while a new process takes the place of an old one."""

OWN = f"""
do $$
declare part text;
begin
    for part in
        select oid::regclass::text from pg_class
        where relnamespace = 'historian'::regnamespace and relkind in ('r', 'p')
          and (relowner = '{HISTORIAN}'::regrole or relispartition)
    loop
        execute format('alter table %s owner to current_user', part);
        execute format('grant select, insert, delete on %s to {HISTORIAN}', part);
    end loop;
end $$
"""

SECURE = "security definer set search_path = pg_catalog, pg_temp set datestyle = 'ISO' set timezone = 'UTC'"
FUNCTIONS = {
    "add_default_partition()": f"""
create function historian.add_default_partition() returns void language plpgsql {SECURE} as $$
begin
    create table historian.events_default partition of historian.events default;
    grant select, insert, delete on historian.events_default to {HISTORIAN};
    grant select on historian.events_default to {READER};
end $$
""",
    "add_partition(date)": f"""
create function historian.add_partition(day date) returns void language plpgsql {SECURE} as $$
declare
    part text := 'events_' || to_char(day, 'YYYY_MM_DD');
    first timestamptz := day;
    after timestamptz := day + 1;
begin
    execute format('create table historian.%I (like historian.events including defaults)', part);
    execute format(
        'with moved as (delete from historian.events_default where at >= $1 and at < $2 returning *)
         insert into historian.%I select * from moved', part) using first, after;
    execute format(
        'alter table historian.events attach partition historian.%I for values from (%L) to (%L)', part, first, after);
    execute format('grant select, insert, delete on historian.%I to {HISTORIAN}', part);
    execute format('grant select on historian.%I to {READER}', part);
end $$
""",
    "drop_partition(date)": f"""
create function historian.drop_partition(day date) returns void language plpgsql {SECURE} as $$
begin
    execute format('drop table if exists historian.%I', 'events_' || to_char(day, 'YYYY_MM_DD'));
end $$
""",
}


def upgrade() -> None:
    op.execute(OWN)
    op.execute(f"revoke create on schema historian from {HISTORIAN}")
    for signature, function in FUNCTIONS.items():
        op.execute(function)
        op.execute(f"revoke execute on function historian.{signature} from public")
        op.execute(f"grant execute on function historian.{signature} to {HISTORIAN}")
    for service in SERVICES:
        op.execute(f"alter role holdfast_{service} connection limit {CONNECTIONS_MAX}")
