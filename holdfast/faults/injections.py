"""Active injections: a file for each in the cluster's directory, written before the first step is done."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import msgspec

from holdfast.embedded.layout import ClusterLayout, write_private
from holdfast.faults.fault import FaultRefused
from holdfast.faults.registry import AnyStep


class Injection(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A fault that was injected, with the steps that undo it."""

    id: str
    fault: str
    at: datetime
    by: str
    steps: tuple[AnyStep, ...]
    symptom: str = ""
    node: str | None = None
    job: str | None = None
    rank: int | None = None
    options: dict[str, str] = {}

    @property
    def lasts(self) -> bool:
        return any(step.lasts for step in self.steps)


class InjectionLog:
    def __init__(self, layout: ClusterLayout) -> None:
        self._directory = layout.faults

    def inject(self, wanted: Injection) -> None:
        """Record the steps, then do them. If one fails, undo them and raise FaultRefused with the reason."""
        self._directory.mkdir(mode=0o700, exist_ok=True)
        write_private(self._file(wanted.id), msgspec.json.encode(wanted), durable=True)
        try:
            for step in wanted.steps:
                step.do()
        except BaseException as error:
            self.undo(wanted)
            if isinstance(error, OSError):
                raise FaultRefused(f"{wanted.fault}: {error}") from error
            raise
        if not wanted.lasts:
            self._file(wanted.id).unlink(missing_ok=True)

    def undo(self, injected: Injection) -> None:
        """Undo what was done of an injection; harmless when repeated. If it raises FaultRefused, it stays recorded."""
        failed = []
        for step in reversed(injected.steps):
            try:
                step.undo()
            except (OSError, FaultRefused) as error:
                failed.append(str(error))
        if failed:
            raise FaultRefused(f"{injected.fault} ({injected.id}) cannot be undone: {'; '.join(failed)}")
        self._file(injected.id).unlink(missing_ok=True)

    def all(self) -> list[Injection]:
        """Return the active injections, oldest first. Raises FaultRefused if a file cannot be read."""
        return [_read(file) for file in sorted(self._directory.glob("*.json"))]

    def _file(self, id: str) -> Path:
        return self._directory / f"{id}.json"


def _read(file: Path) -> Injection:
    try:
        return msgspec.json.decode(file.read_bytes(), type=Injection)
    except (OSError, msgspec.MsgspecError) as error:
        raise FaultRefused(
            f"{file} cannot be read ({error}): it lists what `holdfast inject --undo` must undo; undo that by hand, "
            "then remove the file"
        ) from error
