"""Results of tests that passed, folded into the result that ends their node's run, and unfolded. Pure.

A node publishes a failure at once. Passed tests, twelve on each of ten thousand nodes, change no decision: they are
published in one message per node, and count as if each had been published by itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from holdfast.events import DiagnosticResult


def unfolded(results: Iterable[DiagnosticResult]) -> Iterator[DiagnosticResult]:
    """Return all results one by one. What was folded has the id of the event that carried it."""
    for result in results:
        if not result.folded:
            yield result
            continue
        end = msgspec.structs.replace(result, folded=())
        for part in result.folded:
            yield msgspec.structs.replace(end, results=0, **msgspec.structs.asdict(part))
        yield end
