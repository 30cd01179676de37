"""The GPUs that CUDA shows to a process under a value of CUDA_VISIBLE_DEVICES. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class VisibleGpus(NamedTuple):
    indexes: tuple[int, ...]
    """Indexes of the GPUs, in the order of the variable's value."""
    unknown: str = ""
    """The entry at which this stops because it names a device that is not listed, such as an instance of MIG."""


def visible_gpus(value: str, uuids: Sequence[str]) -> VisibleGpus:
    """Return the indexes of the visible ones of these GPUs, which have these UUIDs ("": not known).

    An entry is an index, or a UUID or its beginning. CUDA ignores what follows an invalid entry.
    """
    found: list[int] = []
    for entry in (part.strip() for part in value.split(",")):
        if entry.isdecimal():
            named = [int(entry)] if int(entry) < len(uuids) else []
        elif entry.startswith(("GPU-", "MIG-")):
            # Before driver 470 an instance of MIG was named MIG-<UUID of its GPU>/<instance>/<instance>.
            name = entry.removeprefix("MIG-").partition("/")[0]
            named = [index for index, uuid in enumerate(uuids) if uuid.startswith(name)]
            if len(named) != 1:
                return VisibleGpus(tuple(found), unknown=entry)
        else:
            break
        if len(named) != 1:
            break
        found.append(named[0])
    return VisibleGpus(tuple(found))
