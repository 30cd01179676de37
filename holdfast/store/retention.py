"""How long the inbox and the outbox are kept."""

from datetime import timedelta

INBOX_KEPT = timedelta(days=7)
"""A message that comes again after this is taken for new; the bus repeats its messages within minutes."""
OUTBOX_KEPT = timedelta(days=1)
"""Published messages stay this long, for people to look at."""
