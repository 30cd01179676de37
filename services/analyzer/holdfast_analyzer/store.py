"""The analyzer's rows: for each job what its findings rest on and no later sample would tell again."""

from __future__ import annotations

from typing import Any

from holdfast.engines.telemetry.model import Model
from holdfast.store import Table
from holdfast_analyzer.engines.bad_numbers.bad_numbers import Known


def _columns(known: Known) -> dict[str, Any]:
    return {"generation": known.generation, "certified_step": known.certified}


def _model_columns(model: Model) -> dict[str, Any]:
    scores = model.scores
    return {
        "made_at": model.made_at,
        "windows": model.windows,
        "accuracy": scores.accuracy if scores else None,
        "precision": scores.precision if scores else None,
        "recall": scores.recall if scores else None,
    }


MODELS = Table(name="telemetry_models", row_type=Model, columns=_model_columns)
KNOWN = Table(name="known", row_type=Known, columns=_columns)
TABLES: tuple[Table[Any], ...] = (KNOWN, MODELS)
