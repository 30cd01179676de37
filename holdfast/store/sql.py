"""Every SQL statement of the store, by name."""

from __future__ import annotations

from functools import cache

FORGOTTEN_MARK = "forgotten before"
"""Id of the row of the inbox with the time before which rows were deleted."""


def quoted(identifier: str) -> str:
    return '"' + identifier.replace('"', '""') + '"'


class SchemaSql:
    """The statements of one service's schema."""

    def __init__(self, schema: str) -> None:
        self.schema = schema
        inbox, outbox = f"{quoted(schema)}.inbox", f"{quoted(schema)}.outbox"
        # A row without a subject was written before there were any: it stands for every message with its id.
        self.first_time = (
            f"insert into {inbox} (id, subject) select $1, $2 "
            f"where not exists (select from {inbox} where id = $1 and subject = '') "
            "on conflict do nothing returning true"
        )
        self.emit = (
            f"insert into {outbox} (id, subject, body, headers) "
            "select * from unnest($1::text[], $2::text[], $3::bytea[], $4::jsonb[]) returning position"
        )
        self.pending = (
            f"select position, id, subject, body, headers from {outbox} "
            "where published_at is null order by position limit $1"
        )
        self.published = (
            "with stored as (select * from unnest($1::bigint[], $2::text[], $3::bigint[]) as at (position, stream, "
            f"sequence)), gone as (delete from {outbox} using stored "
            "where outbox.position = stored.position and stored.stream is null) "
            f"update {outbox} set published_at = now(), stream = stored.stream, sequence = stored.sequence from stored "
            "where outbox.position = stored.position and stored.stream is not null"
        )
        # One look into the index for each stream: `distinct on` would read all rows.
        self.newest_published = (
            "select given.stream, newest.sequence, newest.id from unnest($1::text[]) as given (stream), "
            f"lateral (select sequence, id from {outbox} where outbox.stream = given.stream and sequence is not null "
            "order by sequence desc limit 1) as newest"
        )
        self.published_in = (
            f"select stream, sequence, id from {outbox} where stream = $1 and sequence is not null order by sequence"
        )
        self.publish_again = (
            f"update {outbox} set published_at = null, stream = null, sequence = null "
            "where stream = $1 and sequence >= $2"
        )
        # The mark is a row of the inbox itself: it must be pruned, restored and truncated with the others. It never
        # stays in the future: a clock that was wrong for an hour would make the service deaf until then.
        self.prune_inbox = (
            f"with gone as (delete from {inbox} where handled_at < $1 and id <> '{FORGOTTEN_MARK}' "
            "returning handled_at), "
            "until as (select case when $1 <= now() then $1 else (select max(handled_at) from gone) end as at) "
            f"insert into {inbox} as present (id, handled_at) select '{FORGOTTEN_MARK}', at from until "
            "where at is not null on conflict (id, subject) do update set handled_at = case "
            "when present.handled_at > now() then excluded.handled_at "
            "else greatest(present.handled_at, excluded.handled_at) end"
        )
        self.forgotten_before = f"select handled_at from {inbox} where id = '{FORGOTTEN_MARK}'"
        self.prune_outbox = f"delete from {outbox} where published_at < $1"

    def load(self, table: str, changes: str = "") -> str:
        return f"{self.load_all(table, changes)} where key = $1"

    def load_all(self, table: str, changes: str = "") -> str:
        """Give key, version, body and the changes since that body, the oldest first."""
        since = "null"
        if changes:
            since = f"array(select c.body from {self._name(changes)} c where c.key = whole.key order by c.version)"
        return f"select key, version, body, {since} from {self._name(table)} whole"

    def delete(self, table: str) -> str:
        """Remove the row under key $1 at version $2 (null: any)."""
        return f"delete from {self._name(table)} where key = $1 and ($2::bigint is null or version = $2::bigint)"

    def delete_changes(self, changes: str) -> str:
        return f"delete from {self._name(changes)} where key = $1"

    def save_change(self, table: str, columns: tuple[str, ...], changes: str) -> str:
        """Write change $2 of key $1 and columns from $4 on over version $3; gives the new version, or no row."""
        return _save_change(self._name(table), columns, self._name(changes))

    def save(self, table: str, columns: tuple[str, ...]) -> str:
        """Write key $1, body $2 and columns from $4 on over version $3 (0: no row; null: any); gives the new version.

        No row comes back when another version is there, and version 0 when the row is gone.
        """
        return _save(self._name(table), columns)

    def _name(self, table: str) -> str:
        return f"{quoted(self.schema)}.{quoted(table)}"


@cache
def _save(table: str, columns: tuple[str, ...]) -> str:
    names = [quoted(column) for column in columns]
    parameters = [f"${number}" for number in range(4, 4 + len(names))]
    projected = "".join(f", {name} = excluded.{name}" for name in names)
    return (
        f"insert into {table} as present ({', '.join(['key', 'version', 'body', 'updated_at', *names])}) "
        f"values ({', '.join(['$1', 'case when $3::bigint > 0 then 0 else 1 end', '$2', 'now()', *parameters])}) "
        "on conflict (key) do update set "
        f"version = present.version + 1, body = excluded.body, updated_at = excluded.updated_at{projected} "
        "where $3::bigint is null or present.version = $3::bigint "
        "returning version"
    )


@cache
def _save_change(table: str, columns: tuple[str, ...], changes: str) -> str:
    projected = "".join(f", {quoted(name)} = ${number}" for number, name in enumerate(columns, start=4))
    return (
        f"with present as (update {table} set version = version + 1, updated_at = now(){projected} "
        "where key = $1 and version = $3 returning version) "
        f"insert into {changes} (key, version, body) select $1, version, $2 from present returning version"
    )
