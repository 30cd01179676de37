"""Code over the bus, which the controller fills again where it lacks something."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping

import msgspec

from holdfast.bus import Bus
from holdfast.code.manifest import digest_of
from holdfast.code.on_bus import contents_there
from holdfast.decoding import UNREADABLE
from holdfast.fresh_ids import uuid7
from holdfast.requests import Answer, OfferCode, code_requests_of
from holdfast.subjects import CODE_BUCKET

_OFFER_S = 20.0


class CodeUnavailable(Exception):
    """The bus does not have the content and the controller cannot supply it now; the message gives the reason."""


async def fetch_manifest(bus: Bus, node: str, version: str) -> bytes:
    """Return the manifest of a version. Raises CodeUnavailable, BusError."""
    for offers in (False, True):
        if offers:
            await _offer(bus, node, version)
        body = (await bus.get_objects(CODE_BUCKET, [version])).get(version, b"")
        if digest_of(body) == version:
            return body
    raise CodeUnavailable("its manifest is not on the bus, or not whole")


async def fetch_contents(
    bus: Bus, node: str, version: str, sizes: Mapping[str, int]
) -> AsyncIterator[dict[str, bytes]]:
    """Yield contents of a version in batches, by digest. `sizes`: bytes by digest. Raises CodeUnavailable, BusError."""
    lacking = dict(sizes)
    for offers in (False, True):
        if lacking and offers:
            await _offer(bus, node, version)
        async for contents in contents_there(bus, version, lacking):
            yield contents
            lacking = without(lacking, contents)
    if lacking:
        raise CodeUnavailable(f"{len(lacking)} of its files are not on the bus, or not whole")


def without(sizes: Mapping[str, int], found: Collection[str]) -> dict[str, int]:
    return {digest: size for digest, size in sizes.items() if digest not in found}


async def _offer(bus: Bus, node: str, version: str) -> None:
    """Have the controller put a version on the bus again. Raises CodeUnavailable, BusError."""
    request = OfferCode(id=uuid7(), asked_by=node, version=version)
    try:
        body = await bus.request(code_requests_of(node), msgspec.json.encode(request), _OFFER_S)
        answer = msgspec.json.decode(body, type=Answer)
    except UNREADABLE as error:
        raise CodeUnavailable(f"the controller's answer cannot be read: {error}") from error
    if not answer.accepted:
        raise CodeUnavailable(answer.message)
