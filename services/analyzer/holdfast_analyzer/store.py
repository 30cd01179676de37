"""The analyzer's rows: for each job what its findings rest on and no later sample would tell again."""

from __future__ import annotations

from typing import Any

from holdfast.store import Table
from holdfast_analyzer.bad_numbers import Known


def _columns(known: Known) -> dict[str, Any]:
    return {"generation": known.generation, "certified_step": known.certified}


KNOWN = Table(name="known", row_type=Known, columns=_columns)
TABLES: tuple[Table[Any], ...] = (KNOWN,)
