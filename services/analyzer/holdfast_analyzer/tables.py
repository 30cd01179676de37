"""The analyzer's tables, as the migrations make them: it keeps no state of its own."""

from __future__ import annotations

from holdfast.store.schema import service_metadata

METADATA = service_metadata("analyzer")
