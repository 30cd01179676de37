"""Which certificates of nodes are refused, and the file that says so."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from holdfast.network.refusals import Refusals

SINCE = datetime(2026, 11, 24, 0, 10, tzinfo=UTC)


def test_revoked_nodes_are_refused_and_older_certificates_of_restored_ones() -> None:
    refusals = Refusals.parse("node-1 # stolen\n\nnode-2 2026-11-24T01:10:00+01:00\n")
    assert refusals.why(["node-1"], None) == refusals.why(["a", "node-1"], SINCE) == "node node-1 is revoked"
    assert "is from before 2026-11-24 00:10:00 UTC" in refusals.why(["node-2"], SINCE - timedelta(seconds=1))
    for names, made_at in ((["node-2"], SINCE), (["node-2"], None), (["node-3"], SINCE)):
        assert refusals.why(names, made_at) == ""
    assert str(refusals) == "node-1\nnode-2 2026-11-24T00:10:00+00:00\n"
    assert str(Refusals.parse("")) == ""


@pytest.mark.parametrize("line", ["a_b", "node-1 soon", "node-1 2026-11-24T00:10:00", "node-1 2026-11-24 00:10:00Z"])
def test_a_line_that_cannot_be_read_is_named(line: str) -> None:
    with pytest.raises(ValueError, match=r"^line 2: "):
        Refusals.parse(f"node-0\n{line}")
