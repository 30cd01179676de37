"""The versions of a job's code: which one runs, which one is pending, what is known about each."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

import msgspec

from holdfast.code.manifest import Digest, short

VERSIONS_MAX = 20
"""Maximum number of versions in the state of a job; the table `code_versions` has all."""


class CodeVerdict(StrEnum):
    """The state of knowledge about a version: `trained` made a step on every node, `good` trained for long enough."""

    UNKNOWN = "unknown"
    TRAINED = "trained"
    GOOD = "good"
    BAD = "bad"


class CodeVersion(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One version of a job's code, and the verdict on it."""

    version: Digest
    number: int
    """Counted from 1 within the job."""
    author: str
    created_at: datetime
    parent: str | None = None
    """The version that ran when this one was submitted."""
    origin: str = ""
    """The directory that it was read from."""
    commit: str = ""
    """The git commit of that directory, if any."""
    is_dirty: bool = False
    message: str = ""
    files: int = 0
    code_bytes: int = 0
    verdict: CodeVerdict = CodeVerdict.UNKNOWN
    why: str = ""

    @property
    def name(self) -> str:
        return f"version {self.number} ({short(self.version)})"


class PendingVersion(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A version that the next start of ranks brings in, whatever the reason of that start."""

    version: Digest
    asked_by: str
    until: datetime | None = None
    """When the job is restarted for it."""
    is_urgent: bool = False
    goes_back: bool = False
    """True if the version ran before."""
    reason: str = ""
    event: str = ""
    """Id of the `update_planned` that announced it; "": none did."""


class CodeState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """All versions of a job's code, and the one that runs."""

    version: Digest | None = None
    """The version that runs; None if the job runs its script in place."""
    versions: tuple[CodeVersion, ...] = ()
    pending: PendingVersion | None = None
    since_generation: int = 0
    """The first generation of the present version."""
    first_step: int | None = None
    """The first step of the present generation; None before it."""
    failures: int = 0
    """Incidents that have ended since the present version came, before it was known to be good."""

    @property
    def present(self) -> CodeVersion | None:
        return self.known(self.version)

    @property
    def fallback(self) -> CodeVersion | None:
        """The version to roll back to: the newest other one that is good, else the newest that has trained."""
        for wanted in (CodeVerdict.GOOD, CodeVerdict.TRAINED):
            for known in reversed(self.versions):
                if known.verdict is wanted and known.version != self.version:
                    return known
        return None

    @property
    def wanted(self) -> tuple[str, ...]:
        """The versions that nodes may have to run next; the likeliest first."""
        pending = self.pending.version if self.pending else None
        fallback = self.fallback
        versions = (pending, self.version, fallback.version if fallback else None)
        return tuple(dict.fromkeys(version for version in versions if version))

    def known(self, version: str | None) -> CodeVersion | None:
        return next((known for known in self.versions if known.version == version), None)

    def named(self, name: str) -> list[CodeVersion]:
        """Return the versions that `name` may mean: a number, or the beginning of a digest."""
        if name.isdecimal() and (numbered := [known for known in self.versions if str(known.number) == name]):
            return numbered
        return [known for known in self.versions if known.version.startswith(name)] if name else []

    def judged(self, version: str, verdict: CodeVerdict, why: str) -> CodeState:
        return self.update(
            versions=tuple(
                msgspec.structs.replace(known, verdict=verdict, why=why) if known.version == version else known
                for known in self.versions
            )
        )

    def with_version(self, new: CodeVersion) -> CodeState:
        """Return the state with one more version; beyond the maximum the oldest that is not needed is dropped."""
        versions = (*self.versions, new)
        while len(versions) > VERSIONS_MAX:
            needed = {*self.wanted, new.version}
            oldest = next(known for known in versions if known.version not in needed)
            versions = tuple(known for known in versions if known is not oldest)
        return self.update(versions=versions)

    def update(self, **changes: object) -> CodeState:
        return msgspec.structs.replace(self, **changes)
