"""Names, times and numbers as every event field uses them, with the limits of the JSON that carries them."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

import msgspec

Id = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$(?!\n)")]
"""A UUID in its canonical form; events carry version 7."""


Name = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?$(?!\n)")]
"""A job's or a node's name: one token of a subject."""


Moment = Annotated[datetime, msgspec.Meta(tz=True)]
"""A point in time, with its zone."""


INTEGER_MAX = (1 << 53) - 1
"""Integers beyond this are not exact in every JSON reader, and no real count comes near it."""


Integer = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
"""A number that something else has counted in 64 bits. JSON has larger ones, which no float can hold."""


Count = Annotated[int, msgspec.Meta(ge=0, le=INTEGER_MAX)]
"""A number of things, or an index from 0."""


Step = Annotated[int, msgspec.Meta(ge=-1, le=INTEGER_MAX)]
"""A training step; -1 before any is completed."""


Code = Annotated[int, msgspec.Meta(ge=-(1 << 31), le=(1 << 31) - 1)]
"""An exit code or the number of a signal."""


Port = Annotated[int, msgspec.Meta(ge=1, le=65535)]
"""A TCP port."""


SECONDS_MAX = 1e11
"""Longer than any difference of two times in 64 bits of nanoseconds."""


Seconds = Annotated[float, msgspec.Meta(ge=0, le=SECONDS_MAX)]
"""A duration that a node has measured."""


StepSeconds = Annotated[float, msgspec.Meta(gt=0, le=SECONDS_MAX)]
"""The duration of a usual step: what is divided by it stays finite."""
