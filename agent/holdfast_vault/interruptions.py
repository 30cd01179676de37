"""The interruption of a job when a vault cannot keep a rank's step.

All other vaults of the job are to keep the last step that all ranks had, by an order that follows the notice. The rank
waits for the order: meanwhile no other rank gets so far ahead that its vault gives that step up.
"""

from __future__ import annotations

import threading
import time

from holdfast.node.vault.messages import NotKept, SealedStep, ShardName
from holdfast_vault.assignments import Assignments, job_of
from holdfast_vault.notices import Notices

WAIT_S = 2.0
WAITING_SHARE = 1 / 10
"""Largest share of its time for which a job waits for such orders, which may not come."""


class Interruptions:
    def __init__(self, assignments: Assignments, notices: Notices) -> None:
        self._assignments = assignments
        self._notices = notices
        self._lock = threading.Lock()
        self._waits_from = 0.0

    def not_kept(self, name: ShardName, sealed: SealedStep, reason: str) -> None:
        """Report that a step was not kept; return once the job's last common step is frozen, or after a moment."""
        self._notices.publish(NotKept(name=name, sealed=sealed, reason=reason))
        present = self._assignments.of_job(job_of(name))
        began = time.monotonic()
        if present is None or present.order.keeper is None or began < self._waits_from:
            return
        self._assignments.wait_until_frozen(job_of(name), WAIT_S)
        ended = time.monotonic()
        with self._lock:
            self._waits_from = max(self._waits_from, ended + (ended - began) / WAITING_SHARE)
