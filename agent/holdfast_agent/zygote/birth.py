"""An agent's request for a zygote that the nursery forks, the replies, and the decision whether to decline. Pure.

A fork has the nursery's memory and whatever else a process inherits. It replaces a zygote that the agent starts itself
only where both would have inherited the same; anything that differs is a reason to decline, not something to change.
The agent's network and mounts are an exception: the fork enters them. Code is imported through mounts, so the agent
must see the same directories at the places of the nursery's code.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

ENTERED = ("mnt", "net")
"""Namespaces of the agent that a fork enters. Imports do not read the network, and the code that they read through the
mounts is compared."""
_READ_LATER = (b"HOLDFAST_", b"GLOO_SOCKET_IFNAME=", b"NCCL_SOCKET_IFNAME=")
"""Beginnings of variables that nothing reads at import."""
REASONS_SHOWN = 5


class BirthRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request for a zygote. Two descriptors come with it: the log, and a pipe that is closed when it is ready."""

    state_dir: str
    address: str
    environment: tuple[bytes, ...]
    """Variables of the zygote as `NAME=value`."""
    python: str
    release: str = ""
    """Release of Holdfast that the agent has loaded. "": one that did not send it."""
    blocked: tuple[int, ...]
    """The agent's blocked signals. They are sent because /proc also shows those that the C library blocks for a moment
    while it starts a thread."""


class Born(msgspec.Struct, frozen=True, kw_only=True, tag="born"):
    """The zygote exists. Its pidfd comes with this reply."""

    pid: int


class Declined(msgspec.Struct, frozen=True, kw_only=True, tag="declined"):
    """The agent has to start its zygote itself."""

    reason: str


BirthReply = Born | Declined


def decline(
    nursery: Mapping[str, str],
    agent: Mapping[str, str],
    nursery_environment: Iterable[bytes],
    agent_environment: Iterable[bytes],
) -> str | None:
    """Return why the nursery's fork cannot replace a process started by the agent; None if it can.

    The first two map what a process inherits from its parent, or has at a place of code, to its value. Variables of
    Holdfast itself, and those of the interfaces that collectives use, are not compared, because nothing reads them at
    import. Values are left out of the reason: a variable may be a secret.
    """
    entered = {f"namespace {name}" for name in ENTERED}
    compared = sorted({*nursery, *agent} - entered)
    inherited = [name for name in compared if nursery.get(name) != agent.get(name)]
    variables = {_name(entry) for entry in _compared(nursery_environment) ^ _compared(agent_environment)}
    names = inherited + [f"variable {name}" for name in sorted(variables)]
    if not names:
        return None
    more = f" and {len(names) - REASONS_SHOWN} more" if len(names) > REASONS_SHOWN else ""
    return f"the agent differs in {', '.join(names[:REASONS_SHOWN])}{more}"


def _compared(environment: Iterable[bytes]) -> frozenset[bytes]:
    return frozenset(entry for entry in environment if not entry.startswith(_READ_LATER))


def _name(entry: bytes) -> str:
    return entry.partition(b"=")[0].decode(errors="replace")
