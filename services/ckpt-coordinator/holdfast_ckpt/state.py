"""What the coordinator knows of checkpoints: the catalogue of restorable steps."""

from __future__ import annotations

from datetime import datetime

import msgspec


class CataloguedStep(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint of a job that is whole: every rank's part of it was published."""

    job: str
    step: int
    path: str
    checkpoint_bytes: int
    saved_at: datetime
    generation: int
