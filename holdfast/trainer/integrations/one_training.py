"""Selects the training whose steps are kept: the first one in the process of a rank of Holdfast."""

from __future__ import annotations

import logging
import os

log = logging.getLogger("holdfast.trainer.checkpoint")

JOB_VARIABLE = "HOLDFAST_JOB"
_begun: list[str] = []


def is_rank() -> bool:
    return bool(os.environ.get(JOB_VARIABLE))


def begins(what: str) -> bool:
    """Return True if this training is to be kept: the process is a rank, and it is the first one that it begins.

    Steps of a second one have the same numbers, and a restart could not tell which of the two they are of.
    """
    if not is_rank():
        return False
    if _begun:
        log.warning("%s is not kept in memory: this process keeps %s, and only one training", what, _begun[0])
        return False
    _begun.append(what)
    return True
