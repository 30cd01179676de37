"""The part of a job that torchrun's flags set beside its shape: environment of its ranks, places of their output."""

from __future__ import annotations

import re
from enum import IntFlag
from typing import Literal

import msgspec

from holdfast.events.parts.scalars import Count

SIGNALS = "SIGTERM,SIGINT,SIGHUP,SIGQUIT"
RESTARTS_UNBOUNDED = 2**31 - 1
"""Maximum number of restarts that a script reads from its environment if the user gave none."""

LAST_CALL_S_MAX = 24 * 3600.0

NumaBinding = Literal["", "node", "socket", "exclusive", "core-complex"]

_STREAMS = re.compile(r"[0-3]|\d+:[0-3](,\d+:[0-3])*")


class Streams(IntFlag):
    """Output streams of a rank."""

    NONE = 0
    OUT = 1
    ERR = 2


STREAMS = {"out": Streams.OUT, "err": Streams.ERR}
"""Streams by their names in files and messages."""


def streams_of(text: str, local_rank: int) -> Streams:
    """Return what `3` (of all ranks) or `0:1,1:2` (of these local ranks) names for one rank. Raises ValueError."""
    if not _STREAMS.fullmatch(text):
        raise ValueError(f"{text!r} names no streams: use 0 to 3 (1: stdout, 2: stderr, 3: both), or 0:1,1:2 by rank")
    if ":" not in text:
        return Streams(int(text))
    named = dict(entry.split(":") for entry in text.split(","))
    return Streams(int(named.get(str(local_rank), 0)))


class Launch(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The flags of torchrun that Holdfast follows; each is described in `docs/torchrun.md`."""

    run_id: str = ""
    """TORCHELASTIC_RUN_ID; "": the job's name."""
    role: str = "default"
    max_restarts: Count | None = None
    """The job ends instead of restarting more often for failures; None: only the ladder decides."""
    last_call_s: float | None = None
    """Time for which an elastic job waits for more nodes once it has its minimum; None: the cluster's setting."""
    signals: str = SIGNALS
    virtual_local_rank: bool = False
    """Each rank sees its own GPU only, and is local rank 0."""
    numa_binding: NumaBinding = ""
    """The processors near its GPU that each rank is bound to, as torchrun names them; "": not bound."""
    no_python: bool = False
    """The script is a program, and is run without Python."""
    log_dir: str = ""
    """Directory of the files that `redirects` and `tee` ask for, one below it per node, attempt and local rank."""
    redirects: str = "0"
    """Streams that go to files, and not to the command that follows the job."""
    tee: str = "0"
    """Streams that go to both."""
    shown_ranks: tuple[Count, ...] = ()
    """Local ranks whose output the command shows; empty: rank 0 of the job, and what `tee` names."""

    def __post_init__(self) -> None:
        streams_of(self.redirects, 0)
        streams_of(self.tee, 0)
        if self.last_call_s is not None and not 0 <= self.last_call_s <= LAST_CALL_S_MAX:
            raise ValueError(f"last_call_timeout={self.last_call_s:g} is not from 0 to {LAST_CALL_S_MAX:g} seconds")

    def copied(self, local_rank: int) -> Streams:
        """Return the streams of a rank that go to files."""
        return streams_of(self.redirects, local_rank) | streams_of(self.tee, local_rank)

    def shown(self, rank: int, local_rank: int) -> Streams:
        """Return the streams of a rank that the command shows."""
        teed = streams_of(self.tee, local_rank)
        if self.shown_ranks and local_rank not in self.shown_ranks:
            return Streams.NONE
        if not self.shown_ranks and rank:
            return teed
        return teed | (Streams.OUT | Streams.ERR) & ~streams_of(self.redirects, local_rank)
