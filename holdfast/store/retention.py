"""Retention of inbox and outbox."""

from datetime import timedelta

INBOX_KEPT = timedelta(days=7)
"""A repeated message is taken for new after this time; the bus repeats its messages within minutes."""
OUTBOX_KEPT = timedelta(days=1)
"""Published messages stay this long: what the bus loses within it is published again."""
