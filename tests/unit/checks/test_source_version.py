"""The version of a test is a digest of its sources."""

from __future__ import annotations

from holdfast_checks.source_version import program_of


def test_the_version_names_the_number_of_devices_only_where_they_compute_together() -> None:
    alone, together = program_of("alignment", 2), program_of("alignment_parallel", 2)
    assert len(alone) == 16
    assert together == f"{alone}/2"
