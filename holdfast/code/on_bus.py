"""Contents of versions on the bus: a few travel each under its hash, many together in bundles of their version.

So a small change is all that is sent of a large tree, and a whole tree does not take a request for each file. What is
received is compared with its hash, whatever its sender.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping

import msgspec

from holdfast.bus import Bus
from holdfast.code.manifest import digest_of
from holdfast.decoding import UNREADABLE
from holdfast.subjects import CODE_BUCKET

FEW = 16
"""Number of contents up to which each is a separate object."""
BUNDLE_BYTES = 8 << 20
"""Size of contents in memory at once, and of a bundle, unless one content is larger."""

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(dict[str, bytes])


async def publish(bus: Bus, version: str, contents: Mapping[str, bytes]) -> None:
    """Put contents of a version on the bus. Raises BusError."""
    if len(contents) <= FEW:
        await bus.put_objects(CODE_BUCKET, contents)
        return
    sizes = {digest: len(body) for digest, body in contents.items()}
    for number, batch in enumerate(batches_of(sizes)):
        await publish_bundle(bus, version, number, {digest: contents[digest] for digest in batch})


async def publish_bundle(bus: Bus, version: str, number: int, contents: dict[str, bytes]) -> None:
    """Put one bundle of a version on the bus; their numbers begin at 0. Raises BusError."""
    await bus.put_objects(CODE_BUCKET, {_bundle(version, number): _encoder.encode(contents)})


async def contents_there(bus: Bus, version: str, sizes: Mapping[str, int]) -> AsyncIterator[dict[str, bytes]]:
    """Yield those of the contents (their sizes by hash) that the bus has, in batches. Raises BusError."""
    lacking = dict(sizes)
    if len(lacking) <= FEW:
        for batch in batches_of(sizes):
            found = _sound(await bus.get_objects(CODE_BUCKET, batch), lacking)
            yield found
            lacking = _without(lacking, found)
    number = 0
    while lacking:
        name = _bundle(version, number)
        body = (await bus.get_objects(CODE_BUCKET, [name])).get(name)
        if body is None:
            return
        found = _sound(_opened(body), lacking)
        yield found
        lacking = _without(lacking, found)
        number += 1


def batches_of(sizes: Mapping[str, int]) -> Iterator[list[str]]:
    """Divide contents into batches of `BUNDLE_BYTES`."""
    batch: list[str] = []
    total = 0
    for digest, size in sizes.items():
        if batch and total + size > BUNDLE_BYTES:
            yield batch
            batch, total = [], 0
        batch.append(digest)
        total += size
    if batch:
        yield batch


def _bundle(version: str, number: int) -> str:
    return f"{version}.{number}"


def _opened(bundle: bytes) -> dict[str, bytes]:
    try:
        return _decoder.decode(bundle)
    except UNREADABLE:
        return {}


def _sound(found: Mapping[str, bytes], wanted: Mapping[str, int]) -> dict[str, bytes]:
    return {digest: body for digest, body in found.items() if digest in wanted and digest_of(body) == digest}


def _without(sizes: Mapping[str, int], found: Mapping[str, bytes]) -> dict[str, int]:
    return {digest: size for digest, size in sizes.items() if digest not in found}
