"""An agent that inspects its node: what it finds comes out as an event, and an unfit node does not offer itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.events import Inspection, NodeInspected
from holdfast.events.parts.job import CheckResult
from tests.integration.agent_node import Node, node
from tests.integration.test_inspections_live import MINE, needs_kmsg, xid

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]


def settings(**values: str) -> dict[str, str]:
    return {f"HOLDFAST_INSPECTIONS_{name.upper()}": value for name, value in values.items()}


@needs_kmsg
async def test_what_is_found_is_an_alert_and_without_doubt_makes_an_unfit_node(
    embedded_nats: str, node_place: Path, tmp_path: Path
) -> None:
    async with node("inspected-1", node_place, embedded_nats, settings(disabled="", gpus=MINE)) as it:
        checked = await it.heard.wait(NodeInspected)
        assert checked.passed and "inspection kernel" in {check.name for check in checked.checks}
        xid(MINE, 79)
        alert = await it.heard.wait(Inspection, lambda event: event.state == "alert" and event.device == MINE)
        assert (alert.check, alert.kind, alert.confidence, alert.scope) == ("kernel", "xid 79", "evict", "node")
        assert alert.symptom == "gpu_unavailable" and alert.is_momentary and "79, pid=1" in alert.lines[0]
        assert alert.node == "inspected-1" and alert.boot_id
        assert "restart the agent" in (await failed(it, "inspection kernel")).detail

        # Another life of the agent, that finds something missing from the first.
        missing = tmp_path / "checkpoints"
        it.kill_agent()
        it.environment = settings(mounts=str(missing))
        it.start()
        assert f"nothing is mounted at {missing}" in (await failed(it, "inspection mounts")).detail
        alert = await it.heard.wait(Inspection, lambda event: event.device == str(missing))
        assert (alert.state, alert.confidence, alert.symptom) == ("alert", "evict", "filesystem_mount")


async def test_a_node_whose_full_disk_has_space_again_offers_itself(
    embedded_nats: str, nursery: Path, small_disk: Path
) -> None:
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(100 << 20))
    async with node("inspected-2", small_disk, embedded_nats) as it:
        assert "256 MiB needed" in (await failed(it, "disk")).detail
        ballast.unlink()
        await it.heard.wait(NodeInspected, lambda event: event.passed)


async def failed(it: Node, name: str) -> CheckResult:
    """The check of this name, once a self-check has failed by it alone."""

    def by_it(event: NodeInspected) -> bool:
        return [check.name for check in event.checks if check.status == "failed"] == [name]

    inspected = await it.heard.wait(NodeInspected, by_it)
    return next(check for check in inspected.checks if check.name == name)
