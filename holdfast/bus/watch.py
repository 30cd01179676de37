"""Watches of keys on a NATS link, without a consumer: the server publishes each new value as it stores it.

A watch subscribes to those and reads the newest values once. A consumer would do the same at more cost, and needs a
right that no node should have: to have messages delivered to any subject.
"""

from __future__ import annotations

import msgspec

from holdfast.bus import KeyUpdate, NoResponder
from holdfast.bus.link import NO_MESSAGE, Inflow, Link, status_of
from holdfast.bus.nats_py import Msg
from holdfast.bus.streams import StreamMissing
from holdfast.subjects import bucket_stream, kv_subject, stored_subject

LOOK_AGAIN_S = 30.0
"""Interval at which a key without news is read again: what the server publishes on storing may get lost."""


class Watch:
    """A watch of one key, or of several: its last part may be `*`."""

    def __init__(self, bucket: str, key: str) -> None:
        self.has_wildcard = "*" in key
        self._bucket = bucket
        self._key = key
        self._link: Link | None = None
        self._newest: dict[str, KeyUpdate] = {}

    async def attach(self, link: Link) -> Inflow:
        """Receive the newest values, then each new one.

        Raises StreamMissing or BusUnavailable if it cannot now, BusError if the server refuses for good.
        """
        if link is not self._link:
            self._link = link
            self._newest.clear()
        inflow = await link.subscribe(stored_subject(self._bucket, self._key))
        try:
            # What is stored after this subscription arrives by it; what was stored before is read now.
            read = all_values if self.has_wildcard else _one_value
            inflow.put_first(await read(link, self._bucket, self._key))
        except BaseException:
            await inflow.close()
            raise
        return inflow

    def is_new(self, update: KeyUpdate) -> bool:
        """Return False for a value that this link has brought already: read, and published as it was stored."""
        # The revision alone is not enough: a bucket that is made again counts from the beginning.
        if self._newest.get(update.key) == update:
            return False
        self._newest[update.key] = update
        return True


async def newest_value(link: Link, bucket: str, key: str) -> Msg | None:
    """Return the message with a key's value, None if it has none. Raises StreamMissing, BusUnavailable, BusError."""
    return await _read(link, bucket, f".{kv_subject(bucket, key)}", b"")


async def _one_value(link: Link, bucket: str, key: str) -> list[Msg]:
    found = await newest_value(link, bucket, key)
    return [] if found is None else [found]


async def all_values(link: Link, bucket: str, key: str) -> list[Msg]:
    """Return the messages with the values of all keys that `key` stands for. Raises as `newest_value` does."""
    found: list[Msg] = []
    request = {"seq": 1, "next_by_subj": kv_subject(bucket, key)}
    while (message := await _read(link, bucket, "", msgspec.json.encode(request))) is not None:
        found.append(message)
        request["seq"] = int((message.headers or {})["Nats-Sequence"]) + 1
    return found


async def _read(link: Link, bucket: str, subject: str, request: bytes) -> Msg | None:
    try:
        message = await link.answer(f"$JS.API.DIRECT.GET.{bucket_stream(bucket)}{subject}", request)
    except NoResponder:
        raise StreamMissing(f"bucket {bucket} is not there at {link.address}") from None
    return None if status_of(message) in NO_MESSAGE else message


def is_delete(message: Msg) -> bool:
    return (message.headers or {}).get("KV-Operation") in ("DEL", "PURGE")


def key_update(bucket: str, key: str, message: Msg) -> KeyUpdate | None:
    """Return the update of this key, or of the keys that it stands for, that a message brings.

    None for any other message, which may be an attack: a node can have the server send answers to another node.
    """
    headers = message.headers or {}
    subject, revision = headers.get("Nats-Subject", ""), headers.get("Nats-Sequence", "")
    prefix = kv_subject(bucket, "")
    matches = subject.split(".")[:-1] == (prefix + key).split(".")[:-1] if "*" in key else subject == prefix + key
    if not matches or not revision.isdigit():
        return None
    return KeyUpdate(
        key=subject.removeprefix(prefix),
        body=None if is_delete(message) else message.data,
        revision=int(revision),
    )
