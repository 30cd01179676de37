"""The versions of a job's code, as its state has them: which one runs, which one waits, what is known of each. Pure."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

import msgspec

from holdfast.code.manifest import Digest, short

VERSIONS_MAX = 20
"""Versions that the state of a job remembers, the newest; the record has all."""


class Verdict(StrEnum):
    """What is known of a version: `trained` has done a step on every node, `good` has trained for long enough."""

    UNKNOWN = "unknown"
    TRAINED = "trained"
    GOOD = "good"
    BAD = "bad"


class CodeVersion(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One version of a job's code. `number` counts them from 1; `parent` is the one that ran when it was brought.

    `origin` is the directory that it was taken from, `commit` the git commit there, if any; `why` explains the verdict.
    """

    version: Digest
    number: int
    author: str
    created_at: datetime
    parent: str | None = None
    origin: str = ""
    commit: str = ""
    is_dirty: bool = False
    message: str = ""
    files: int = 0
    code_bytes: int = 0
    verdict: Verdict = Verdict.UNKNOWN
    why: str = ""

    @property
    def name(self) -> str:
        """As people are told of it."""
        return f"version {self.number} ({short(self.version)})"


class Pending(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A version that the next start of ranks brings in, whatever leads to it; at `until` the job is restarted for it.

    `goes_back`: it ran before.
    """

    version: Digest
    asked_by: str
    until: datetime | None = None
    is_urgent: bool = False
    goes_back: bool = False
    reason: str = ""


class CodeState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a job runs; without a version it runs its script where that lies.

    `since_generation` is the first generation of the present version, `first_step` the first step of the present
    generation; None before.
    """

    version: Digest | None = None
    versions: tuple[CodeVersion, ...] = ()
    pending: Pending | None = None
    since_generation: int = 0
    first_step: int | None = None

    @property
    def present(self) -> CodeVersion | None:
        """The version that runs."""
        return self.known(self.version)

    @property
    def fallback(self) -> CodeVersion | None:
        """What to go back to from the present version: the newest other one that is good, or has trained at least."""
        for wanted in (Verdict.GOOD, Verdict.TRAINED):
            for known in reversed(self.versions):
                if known.verdict is wanted and known.version != self.version:
                    return known
        return None

    @property
    def wanted(self) -> tuple[str, ...]:
        """The versions that nodes may be asked to run next, the likeliest first."""
        waiting = self.pending.version if self.pending else None
        fallback = self.fallback
        versions = (waiting, self.version, fallback.version if fallback else None)
        return tuple(dict.fromkeys(version for version in versions if version))

    def known(self, version: str | None) -> CodeVersion | None:
        """The version of this name."""
        return next((known for known in self.versions if known.version == version), None)

    def named(self, name: str) -> list[CodeVersion]:
        """Those that a person may mean: by number, or by the beginning of the name."""
        if name.isdecimal() and (numbered := [known for known in self.versions if str(known.number) == name]):
            return numbered
        return [known for known in self.versions if known.version.startswith(name)] if name else []

    def judged(self, version: str, verdict: Verdict, why: str) -> CodeState:
        """With another verdict of a version."""
        return self.update(
            versions=tuple(
                msgspec.structs.replace(known, verdict=verdict, why=why) if known.version == version else known
                for known in self.versions
            )
        )

    def with_version(self, new: CodeVersion) -> CodeState:
        """With one more version; of too many the oldest that nobody may need is left to the record."""
        versions = (*self.versions, new)
        while len(versions) > VERSIONS_MAX:
            needed = {*self.wanted, new.version}
            oldest = next(known for known in versions if known.version not in needed)
            versions = tuple(known for known in versions if known is not oldest)
        return self.update(versions=versions)

    def update(self, **changes: object) -> CodeState:
        """With some fields changed."""
        return msgspec.structs.replace(self, **changes)
