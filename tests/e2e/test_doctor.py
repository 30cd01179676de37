"""`holdfast doctor` on a whole cluster: nothing is wrong with one that is well, and a stopped service is named."""

from __future__ import annotations

import json
import os
import signal
from typing import Any

import pytest
from cluster import Cluster

pytestmark = pytest.mark.e2e

OF_THE_SURROUNDINGS = ("disk", "dead_letters", "stream", "process", "user")
"""This machine's disks and closed directories, and what other tests did to this cluster: damage, killed processes."""


def _findings(holdfast: Cluster) -> list[dict[str, Any]]:
    told = holdfast.command("doctor", "--json", check=False)
    assert told.returncode in (0, 1), told.stderr
    data = json.loads(told.stdout)
    assert told.returncode == (1 if data["findings"] else 0)
    return [finding for finding in data["findings"] if finding["kind"] not in OF_THE_SURROUNDINGS]


def test_nothing_is_wrong_until_a_service_is_stopped(holdfast: Cluster) -> None:
    job = holdfast.run()
    job.until_step(15)
    holdfast.until("nothing is wrong", lambda: not _findings(holdfast))
    plan = holdfast.command("ckpt", "plan", job.name).stdout
    assert "cross-group (in use)" in plan and "1 MACHINE" in plan
    analyzer = holdfast.pid("analyzer")
    os.kill(analyzer, signal.SIGSTOP)
    try:
        named = _findings(holdfast)
        assert ("service", "analyzer") in {(finding["kind"], finding["about"]) for finding in named}
    finally:
        os.kill(analyzer, signal.SIGCONT)
    job.finish()
