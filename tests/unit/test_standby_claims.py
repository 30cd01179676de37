"""What the standby service remembers of claims that are over."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from holdfast.config import PoolPolicy
from holdfast.events import NodesReleased
from holdfast.ids import uuid7
from holdfast.timeouts import Timeouts
from holdfast_standby.plan import CLAIMS_REMEMBERED, Keeper
from holdfast_standby.state import Heard, Inventory

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def test_a_claim_that_is_over_is_forgotten_when_no_older_one_can_come() -> None:
    keeper = Keeper(Timeouts(), PoolPolicy())
    over = NodesReleased(
        id=uuid7(), at=NOW, source="controller", job="job", nodes=(), withdraws_claim=True, reason="the job is over"
    )
    inventory = keeper.event(Inventory(), over, NOW).inventory
    assert list(inventory.claims) == ["job"]
    almost = NOW + CLAIMS_REMEMBERED - timedelta(seconds=1)
    assert list(keeper.time(inventory, Heard(), almost).inventory.claims) == ["job"]
    assert not keeper.time(inventory, Heard(), NOW + CLAIMS_REMEMBERED).inventory.claims
