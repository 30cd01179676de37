"""Section `[warm_up]`: tests of the nodes beside the start of a job (docs/warm-up.md)."""

from __future__ import annotations

from typing import Annotated

from holdfast.settings import Section, Within


class WarmUpPolicy(Section, frozen=True, kw_only=True):
    """Tests of a job's nodes while its ranks start (TRANSOM §IV-A)."""

    runs: bool = True
    """False: no job has a warm-up, as with `holdfast run --no-warmup`."""

    limit_s: Annotated[float, Within(1.0, 600.0, "a rank that ends meanwhile is judged after it")] = 10.0
    """Time for the tests of a node. What is not over by then shows nothing about the node."""

    path_block_s: Annotated[float, Within(1.0, 30 * 86400.0)] = 600.0
    """Time on the blocklist for a node that lacks a path of its job: for another job it may be as good as any."""
