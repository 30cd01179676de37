"""The standby service's rows: nodes and claims."""

from __future__ import annotations

from typing import Any

from holdfast.store import Table
from holdfast_standby.state import Claim, Node


def _node_columns(node: Node) -> dict[str, Any]:
    return {
        "state": str(node.state),
        "job": node.job,
        "reason": node.reason,
        "blocked_until": node.blocked_until,
        "epoch": node.epoch,
    }


def _claim_columns(claim: Claim) -> dict[str, Any]:
    # `granted_at` is set for withdrawn claims too.
    return {
        "job": claim.job,
        "wanted": claim.waits_for,
        "requested_at": claim.requested_at,
        "granted_at": claim.over_at,
    }


NODES = Table(name="nodes", row_type=Node, columns=_node_columns)
CLAIMS = Table(name="claims", row_type=Claim, columns=_claim_columns)
TABLES: tuple[Table[Any], ...] = (NODES, CLAIMS)
