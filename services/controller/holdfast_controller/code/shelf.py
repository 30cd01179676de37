"""Where the code of all versions is kept: contents by their hashes, each once, however many versions have it.

Beside the store of decisions, in the same schema: what is kept here never changes, so no decision has to wait for it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Protocol, Self

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


class CodeShelf(Protocol):
    """What the controller keeps of code; every method raises StoreUnavailable while the store is away."""

    async def versions(self) -> list[str]:
        """The versions that are kept whole."""
        ...

    async def of_live_jobs(self) -> set[str]:
        """The versions of jobs that are not over."""
        ...

    async def manifest(self, version: str) -> bytes | None:
        """The manifest of a version that is kept whole."""
        ...

    async def missing(self, digests: Collection[str]) -> set[str]:
        """Those whose content is not kept."""
        ...

    async def contents(self, digests: Collection[str]) -> dict[str, bytes]:
        """The contents that are kept."""
        ...

    async def put(self, contents: Mapping[str, bytes]) -> None:
        """Keep these contents."""
        ...

    async def put_manifest(self, version: str, body: bytes) -> None:
        """Keep a version: all that it is made of is kept already."""
        ...

    async def unused(self) -> list[str]:
        """Drop the versions that no job has any more, none that was kept within a day; gives their names."""
        ...

    async def sweep(self, needed: Iterable[str]) -> None:
        """Drop all contents but these, and but those that were kept within a day."""
        ...


class PostgresShelf:
    """`CodeShelf` in the controller's schema."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections

    @classmethod
    async def connect(cls, url: str) -> Self:
        """Prepare for use; the database may still be down."""
        return cls(await Connections.prepare(url, "holdfast-controller-code", most=1))

    async def versions(self) -> list[str]:
        """Those that are kept whole."""
        async with self._connections.one() as connection:
            with translated():
                return [row[0] for row in await connection.fetch(_KEPT)]

    async def of_live_jobs(self) -> set[str]:
        """Those of jobs that are not over."""
        async with self._connections.one() as connection:
            with translated():
                return {row[0] for row in await connection.fetch(_OF_LIVE_JOBS)}

    async def manifest(self, version: str) -> bytes | None:
        """A manifest; see `CodeShelf`."""
        async with self._connections.one() as connection:
            with translated():
                body = await connection.fetchval(_MANIFEST, version)
        return None if body is None else bytes(body)

    async def missing(self, digests: Collection[str]) -> set[str]:
        """Those that are not kept."""
        async with self._connections.one() as connection:
            with translated():
                rows = await connection.fetch(_THERE, list(digests))
        return set(digests) - {row[0] for row in rows}

    async def contents(self, digests: Collection[str]) -> dict[str, bytes]:
        """Those that are kept."""
        async with self._connections.one() as connection:
            with translated():
                rows = await connection.fetch(_CONTENTS, list(digests))
        return {row[0]: bytes(row[1]) for row in rows}

    async def put(self, contents: Mapping[str, bytes]) -> None:
        """Keep these contents."""
        async with self._connections.one() as connection:
            with translated():
                await connection.execute(_PUT, list(contents), list(contents.values()))

    async def put_manifest(self, version: str, body: bytes) -> None:
        """Keep a version."""
        async with self._connections.one() as connection:
            with translated():
                await connection.execute(_PUT, [version], [body])
                await connection.execute(_PUT_MANIFEST, version)

    async def unused(self) -> list[str]:
        """Drop versions of jobs that are forgotten."""
        async with self._connections.one() as connection:
            with translated():
                return [row[0] for row in await connection.fetch(_UNUSED)]

    async def sweep(self, needed: Iterable[str]) -> None:
        """Drop contents that nobody needs."""
        async with self._connections.one() as connection:
            with translated():
                await connection.execute(_SWEEP, list(needed))

    async def close(self) -> None:
        """Give up the connection."""
        await self._connections.close()
