"""The union of all orders."""

from __future__ import annotations

from holdfast.orders.backup import BackupOrder
from holdfast.orders.code import CodeOrder
from holdfast.orders.node import NodeOrder
from holdfast.orders.slow import SlowOrder
from holdfast.orders.trace import TraceOrder

AnyOrder = NodeOrder | BackupOrder | CodeOrder | SlowOrder | TraceOrder
