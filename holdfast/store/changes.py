"""Changes between two versions of a row: finding them, and applying them to the older one. Pure.

A row that holds something of every node of a large job is megabytes, and one event changes a few bytes of it. So the
store keeps the row as it was once, and what each later version changed. A change names fields by the path to them:

    {"in": {field: change}}          a struct, or an object
    {"set": value}                   anything else
    {"more": [...]}                  an array that others were added to
    {"put": {...}, "cut": [...]}     an object, with keys that are strings
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import astuple

from holdfast.growing import Growing, from_json
from holdfast.store import S
from holdfast.store.jsonb import storable_json

Change = dict[str, Any]

ABSENT = 0
"""The version of a row that is not there."""


class Seen(msgspec.Struct, frozen=True):
    """A row as it was last seen or written; without a row its version is ABSENT."""

    version: int
    row: Any
    whole_bytes: int = 0
    """Size of the row when this process last wrote it whole; 0 if it never did."""
    changes_bytes: int = 0
    """Size of its changes since."""

    def written(self, version: int, row: Any, body: bytes, is_whole: bool) -> Seen:
        """Return the row as it is after a write of `body`."""
        if is_whole:
            return Seen(version, row, len(body))
        return Seen(version, row, self.whole_bytes, self.changes_bytes + len(body))


def change_to(seen: Seen | None, row: msgspec.Struct) -> bytes | None:
    """Return what to write in place of the whole row; None if the whole is to be written.

    The whole is written again once its changes are larger: bytes are then at most twice those of the changes. It is
    also written after a start: an earlier version wrote the row perhaps, and changes need the fields that it lacks.
    """
    if seen is None or seen.version == ABSENT:
        return None
    change = storable_json(change_between(seen.row, row) or {"in": {}})
    return change if seen.changes_bytes + len(change) <= seen.whole_bytes else None


def row_of(row_type: type[S], body: bytes | str, changes: Sequence[bytes | str]) -> S:
    """Return the row that was stored whole as `body` and changed since."""
    if not changes:
        return msgspec.json.decode(body, type=row_type, dec_hook=from_json)
    value = msgspec.json.decode(body)
    for change in changes:
        value = apply(msgspec.json.decode(change), value)
    return msgspec.json.decode(msgspec.json.encode(value), type=row_type, dec_hook=from_json)


def change_between(before: Any, after: Any) -> Change | None:
    """Return what makes `after` out of `before`; None if nothing does, because they are equal."""
    if before is after:
        return None
    if isinstance(after, msgspec.Struct) and type(before) is type(after) and not after.__struct_config__.omit_defaults:
        return _of_structs(before, after)
    if isinstance(after, Growing) and type(before) is type(after):
        added = after.since(before)
        if added is not None:
            change: Change = {"put": added, "cut": []} if isinstance(added, dict) else {"more": added}
            return change if added else None
    if before == after:
        return None
    if type(before) is dict and type(after) is dict and all(type(key) is str for key in (*before, *after)):
        put = {key: value for key, value in after.items() if key not in before or before[key] != value}
        return {"put": put, "cut": [key for key in before if key not in after]}
    if type(before) is tuple and type(after) is tuple and before and after[: len(before)] == before:
        return {"more": list(after[len(before) :])}
    return {"set": after}


def _of_structs(before: msgspec.Struct, after: msgspec.Struct) -> Change | None:
    fields = {}
    versions = zip(after.__struct_encode_fields__, astuple(before), astuple(after), strict=True)
    for encoded, older, newer in versions:
        # Most fields are left as they are.
        if older is not newer and (change := change_between(older, newer)) is not None:
            fields[encoded] = change
    return {"in": fields} if fields else None


def apply(change: Change, value: Any) -> Any:
    """Return `value`, decoded JSON that may be changed, as it is after the change."""
    match change:
        case {"set": after}:
            return after
        case {"in": fields}:
            value.update({name: apply(of_field, value.get(name)) for name, of_field in fields.items()})
        case {"more": added}:
            value.extend(added)
        case {"put": put, "cut": cut}:
            for key in cut:
                value.pop(key, None)
            value.update(put)
        case _:
            raise UnknownChange(f"a change of another version: {sorted(change) if isinstance(change, Mapping) else ''}")
    return value


class UnknownChange(ValueError):
    """A stored change that this version cannot read."""
