"""Retention of inbox and outbox."""

from datetime import timedelta

INBOX_KEPT = timedelta(days=7)
"""The bus repeats its messages within minutes; what it stored before the last pruning is not acted on at all."""
OUTBOX_KEPT = timedelta(days=1)
"""Published messages stay this long: what the bus loses within it is published again."""
