"""Tables of code: contents by their hashes, each stored once for all versions that have it.

They are apart from the store of decisions, in the same schema: contents never change, so no decision waits for them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Self

from holdfast.settings.addresses import Address
from holdfast.store.connections import Connections, translated

_KEPT = "select version from controller.code_manifests"
_MANIFEST = """
select content from controller.code_manifests join controller.code_contents on sha256 = version where version = $1
"""
_OF_LIVE_JOBS = """
select distinct v.code from controller.code_versions v join controller.jobs j on j.key = v.job
where j.exit_code is null
"""
_THERE = "select sha256 from controller.code_contents where sha256 = any($1::text[])"
_CONTENTS = "select sha256, content from controller.code_contents where sha256 = any($1::text[])"
_PUT = (
    "insert into controller.code_contents (sha256, content) "
    "select * from unnest($1::text[], $2::bytea[]) on conflict do nothing"
)
_PUT_MANIFEST = "insert into controller.code_manifests (version) values ($1) on conflict do nothing"
_UNUSED = """
delete from controller.code_manifests m
where kept_at < now() - interval '1 day' and not exists (
    select from controller.code_versions v join controller.jobs j on j.key = v.job where v.code = m.version)
returning version
"""
_SWEEP = "delete from controller.code_contents where kept_at < now() - interval '1 day' and sha256 <> all($1::text[])"


class PostgresShelf:
    """Storage of code; every method raises StoreUnavailable while the store cannot be reached."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections

    @classmethod
    async def connect(cls, url: Address) -> Self:
        """Prepare for use; the database may still be down."""
        return cls(await Connections.prepare(url, "holdfast-controller-code", most=1))

    async def versions(self) -> list[str]:
        return [row[0] for row in await self._fetch(_KEPT)]

    async def of_live_jobs(self) -> set[str]:
        return {row[0] for row in await self._fetch(_OF_LIVE_JOBS)}

    async def manifest(self, version: str) -> bytes | None:
        """Return the manifest of a completely stored version."""
        async with self._connections.one() as connection:
            with translated():
                body = await connection.fetchval(_MANIFEST, version)
        return None if body is None else bytes(body)

    async def missing(self, digests: Collection[str]) -> set[str]:
        rows = await self._fetch(_THERE, list(digests))
        return set(digests) - {row[0] for row in rows}

    async def contents(self, digests: Collection[str]) -> dict[str, bytes]:
        """Return the contents that are stored."""
        rows = await self._fetch(_CONTENTS, list(digests))
        return {row[0]: bytes(row[1]) for row in rows}

    async def put(self, contents: Mapping[str, bytes]) -> None:
        async with self._connections.one() as connection:
            with translated():
                await connection.execute(_PUT, list(contents), list(contents.values()))

    async def put_manifest(self, version: str, body: bytes) -> None:
        """Store a version whose contents are all stored."""
        async with self._connections.one() as connection:
            with translated():
                await connection.execute(_PUT, [version], [body])
                await connection.execute(_PUT_MANIFEST, version)

    async def unused(self) -> list[str]:
        """Delete versions that no job has and that are older than a day; return their names."""
        return [row[0] for row in await self._fetch(_UNUSED)]

    async def sweep(self, needed: Iterable[str]) -> None:
        """Delete all contents except `needed` and those stored within a day."""
        async with self._connections.one() as connection:
            with translated():
                await connection.execute(_SWEEP, list(needed))

    async def _fetch(self, sql: str, *values: object) -> list[Any]:
        async with self._connections.one() as connection:
            with translated():
                return list(await connection.fetch(sql, *values))

    async def close(self) -> None:
        await self._connections.close()
