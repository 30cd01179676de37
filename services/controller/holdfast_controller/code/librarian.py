"""The store of submitted code: it copies code from the bus to Postgres, and back for nodes that lack it.

A version is stored once every byte of it is in Postgres and its hash was verified.
"""

from __future__ import annotations

import asyncio
import time

import msgspec
import structlog

from holdfast import requests
from holdfast.bus import Bus, BusError
from holdfast.code.manifest import InvalidManifest, Manifest, decode, digest_of, short
from holdfast.code.on_bus import batches_of, contents_there, publish_bundle
from holdfast.daemon.retrying import until_available
from holdfast.requests import CODE_REQUESTS, Answer, AnyCodeRequest, KeepCode, code_requests_of
from holdfast.store import StoreUnavailable
from holdfast.subjects import CODE_BUCKET
from holdfast_controller.code.shelf import PostgresShelf

OFFERED_S = 10.0
"""One copy to the bus serves all requests for the same version within this time."""
TIDY_EVERY_S = 3600.0

log = structlog.get_logger(__name__)


class _Refused(Exception):
    """A request that cannot be met; the message gives the reason, `lacking` the contents that would mend it."""

    def __init__(self, message: str, lacking: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.lacking = lacking


class Librarian:
    def __init__(self, bus: Bus, shelf: PostgresShelf) -> None:
        self._bus = bus
        self._shelf = shelf
        self._offered: dict[str, float] = {}
        self._stored_at: dict[str, float] = {}
        self._turn = asyncio.Lock()
        self.manifests: dict[str, Manifest] = {}
        """Manifests that decisions may need: of jobs that are not over, and of versions stored recently."""

    async def load(self) -> None:
        """Read the manifests of the present jobs; wait for the store as long as necessary."""

        async def read() -> None:
            for version in await self._shelf.of_live_jobs():
                await self._held(version)

        await until_available(read, StoreUnavailable, "store")

    async def _held(self, version: str) -> Manifest | None:
        """Return the manifest of a version; None if it is not stored completely."""
        if version not in self.manifests and (body := await self._shelf.manifest(version)) is not None:
            try:
                self.manifests[version] = decode(body)
            except InvalidManifest as error:
                # Written by a newer release. Differences between versions are then unknown; jobs go on.
                log.error("a code version cannot be read", version=short(version), reason=str(error))
        return self.manifests.get(version)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for subject in (CODE_REQUESTS, code_requests_of("*")):
                group.create_task(self._bus.serve(subject, self.answer), name=subject)
            group.create_task(self._keep_tidy(), name="tidy code")

    async def answer(self, body: bytes) -> bytes:
        try:
            request = requests.decode_code_request(body)
        except requests.UnreadableRequest as error:
            return _encoded(Answer(accepted=False, message=f"not a request that can be read: {error}"))
        async with self._turn:
            try:
                await self._serve(request)
            except (_Refused, InvalidManifest, BusError, StoreUnavailable) as error:
                name = short(request.version)
                lacking = error.lacking if isinstance(error, _Refused) else ()
                return _encoded(Answer(accepted=False, message=f"code version {name}: {error}", lacking=lacking))
        return _encoded(Answer(accepted=True))

    async def _serve(self, request: AnyCodeRequest) -> None:
        if isinstance(request, KeepCode):
            await self._keep(request.version)
        else:
            await self._offer(request.version)

    async def _keep(self, version: str) -> None:
        if await self._held(version) is not None:
            self._stored_at[version] = time.monotonic()
            return
        body = (await self._bus.get_objects(CODE_BUCKET, [version])).get(version)
        if body is None:
            raise _Refused("its manifest is not on the bus")
        if digest_of(body) != version:
            raise _Refused("the object of that name on the bus has another digest")
        manifest = decode(body)
        missing = await self._shelf.missing(manifest.digests)
        sizes = {digest: size for digest, size in manifest.digests.items() if digest in missing}
        lacking = set(missing)
        async for contents in contents_there(self._bus, version, sizes):
            await self._shelf.put(contents)
            lacking -= contents.keys()
        if lacking:
            raise _Refused(
                f"{len(lacking)} of its {len(manifest.digests)} files are missing on the bus, or incomplete",
                tuple(sorted(lacking)),
            )
        await self._shelf.put_manifest(version, body)
        self.manifests[version] = manifest
        # Not before: any node may ask for versions that exist nowhere.
        self._stored_at[version] = time.monotonic()
        if len(missing) == len(manifest.digests):
            # All of it has just been published by who made it.
            self._offered[version] = time.monotonic()
        log.info("code stored", version=short(version), files=len(manifest.entries), new=len(missing))

    async def _offer(self, version: str) -> None:
        manifest = await self._held(version)
        if manifest is None:
            raise _Refused("the controller does not store it")
        if time.monotonic() - self._offered.get(version, float("-inf")) < OFFERED_S:
            return
        for number, batch in enumerate(batches_of(manifest.digests)):
            await publish_bundle(self._bus, version, number, await self._shelf.contents(batch))
        # The manifest last: a node that finds it finds the rest.
        await self._bus.put_objects(CODE_BUCKET, await self._shelf.contents([version]))
        self._offered[version] = time.monotonic()
        log.info("code published again", version=short(version), files=len(manifest.entries))

    async def _keep_tidy(self) -> None:
        while True:
            await asyncio.sleep(TIDY_EVERY_S)
            try:
                async with self._turn:
                    await self.tidy()
            except StoreUnavailable as error:
                log.warning("code of deleted jobs not removed yet", reason=str(error))

    async def tidy(self) -> None:
        """Delete the code of deleted jobs, and drop manifests of ended jobs from memory."""
        if await self._shelf.unused():
            needed: set[str] = set()
            for version in await self._shelf.versions():
                manifest = await self._held(version)
                if manifest is None:
                    return
                needed |= manifest.digests.keys() | {version}
            await self._shelf.sweep(needed)
        live, now = await self._shelf.of_live_jobs(), time.monotonic()
        for version in [*self.manifests]:
            if version not in live and now - self._stored_at.get(version, float("-inf")) > TIDY_EVERY_S:
                del self.manifests[version]
                self._stored_at.pop(version, None)


def _encoded(answer: Answer) -> bytes:
    return msgspec.json.encode(answer)
