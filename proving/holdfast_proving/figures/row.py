"""One number of a paper beside ours."""

from __future__ import annotations

from typing import Literal

import msgspec

Made = Literal["production", "simulation", "formula"]
"""What made our number. `production`: a decision's own code, asked directly. `simulation`: production code in the
simulated world. `formula`: arithmetic with measured or published numbers; no code of the product takes part."""


class Row(msgspec.Struct, frozen=True, kw_only=True):
    what: str
    ours: float
    paper: float | None
    """None: the paper has no such number."""
    unit: str = ""
    digits: int = 2
    made: Made


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    title: str
    rows: tuple[Row, ...]
    inputs: str
    """What it starts with."""
    why: str
    """What explains the differences."""
