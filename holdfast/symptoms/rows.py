"""Every name that a symptom can have, whoever gives it, and its row of ByteRobust's Table 1. Pure.

Inspections name rows themselves (`TableOne`). The ends of ranks have finer names (`Crash`), stop-time checks and the
controller have their own: what a test of a node shows, and how a job fails.
"""

from __future__ import annotations

from enum import StrEnum

from holdfast.symptoms.crashes import PARENT, Crash
from holdfast.symptoms.table_one import TableOne


class CheckSymptom(StrEnum):
    """What a stop-time check shows, where neither Table 1 nor the end of a rank has a name for it."""

    MEMORY_ERROR = "memory_error"
    COMPUTE_ERROR = "compute_error"
    SILENT_DATA_CORRUPTION = "silent_data_corruption"
    NCCL_INTERNAL_ERROR = "nccl_internal_error"
    PLUGIN_FAILED = "plugin_failed"
    NO_ANSWER = "no_answer"


_OF_CHECKS: dict[str, TableOne | None] = {
    CheckSymptom.MEMORY_ERROR: TableOne.GPU_MEMORY_ERROR,
    CheckSymptom.COMPUTE_ERROR: TableOne.CUDA_ERROR,
    # The table has explicit failures and three implicit ones: wrong numbers come to light as the third.
    CheckSymptom.SILENT_DATA_CORRUPTION: TableOne.NAN_VALUE,
    CheckSymptom.NCCL_INTERNAL_ERROR: TableOne.INFINIBAND_ERROR,
    CheckSymptom.NO_ANSWER: TableOne.JOB_HANG,
    # Whatever its author looked for.
    CheckSymptom.PLUGIN_FAILED: None,
}

_OF_JOBS: dict[str, TableOne | None] = {
    "node_lost": TableOne.OS_KERNEL_PANIC,
    "ranks_vanished": TableOne.CONTAINER_ERROR,
    "start_timeout": TableOne.JOB_HANG,
    "no_first_step": TableOne.JOB_HANG,
    "hang": TableOne.JOB_HANG,
    "fail_slow": TableOne.MFU_DECLINE,
    "nan": TableOne.NAN_VALUE,
    "jump": TableOne.NAN_VALUE,
    "user_exception": TableOne.CODE_DATA_ADJUSTMENT,
    "exit_code": TableOne.CODE_DATA_ADJUSTMENT,
    "service_elsewhere": TableOne.EXTERNAL_SERVICE_ERROR,
    # They say that something ended, not of what.
    "killed_by_signal": None,
    "infrastructure_error": None,
    "peer_lost": None,
    "node_departed": None,
    "node_unfit": None,
}
"""How the controller names a failure of which nothing finer is known (`holdfast_controller.plan.job.Symptom`)."""

ROWS: dict[str, TableOne | None] = {
    **{row.value: row for row in TableOne},
    **{crash.value: PARENT.get(crash) for crash in Crash},
    **_OF_CHECKS,
    **_OF_JOBS,
}
"""All names. None: a name that no row stands above."""


def row_of(symptom: str) -> str:
    """The row of Table 1 that a symptom belongs to, whoever named it; "" where there is none."""
    row = ROWS.get(symptom)
    return "" if row is None else row.value
