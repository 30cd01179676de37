"""The papers' populations of faults: a scenario's true faults have the counts of the paper's table."""

from __future__ import annotations

from collections import Counter

import pytest

from holdfast_proving.scenario.load import load_scenario
from holdfast_proving.truth.generator import true_faults

SEEDS = range(1, 9)
SPREAD = 4.5
"""Standard deviations of a Poisson count that a sum over the seeds may be off: 1 in 150,000 beyond."""

LLAMA_3 = {
    "faulty_gpu": 148,
    "hbm": 72,
    "software_bug": 54,
    "network": 35,
    "host_maintenance": 32,
    "sram": 19,
    "gpu_system_processor": 17,
    "nic": 7,
    "nccl_watchdog": 7,
    "silent_corruption": 6,
    "gpu_thermal": 6,
    "ssd": 3,
    "power_supply": 3,
    "server_chassis": 2,
    "io_board": 2,
    "dependency": 2,
    "cpu": 2,
    "system_memory": 2,
}
FT_HSDP = {
    "hbm": 155,
    "pcie_device": 122,
    "nccl_watchdog": 61,
    "gpu_compute": 50,
    "software_bug": 48,
    "host_maintenance": 42,
    "kernel_fault": 39,
    "reboot": 38,
    "numerics": 37,
    "network": 36,
    "ssd": 30,
    "sram": 8,
    "unknown": 7,
    "system_memory": 2,
    "cooling": 2,
    "gpu_thermal": 1,
}
DENSE = {("gpu", "network", "host", "without_alert"): 128, ("code_adjustment",): 20, ("rolled_back",): 12}
MOE = {("gpu", "network", "host", "without_alert"): 71, ("code_adjustment",): 31, ("rolled_back",): 14}
FLEET = {
    ("cuda_error_of_machine", "cuda_error_of_script"): 19968,
    "cpu_overload": 6095,
    "cpu_oom": 5567,
    "disk_space": 2755,
    "infiniband": 1599,
    "mount": 1176,
    "hdfs": 1104,
    "container": 781,
    "kernel_panic": 203,
    "gpu_memory": 188,
    "external_service": 128,
    "gpu_unavailable": 76,
    "disk_fault": 47,
    "hang": 5506,
    "mfu_decline": 442,
    "nan_value": 148,
    "manual_restart": 9582,
}
TRANSOM = {
    "storage": 34,
    "network": 43,
    "node": 66,
    "user_code": 179,
    ("hang_without_output", "exit_code_9"): 55,
}
IMPLICIT = ("hang", "mfu_decline")


@pytest.mark.parametrize(
    ("name", "table", "total", "share"),
    [
        ("llama3", LLAMA_3, 419, 1),
        ("ft-hsdp", FT_HSDP, 678, 1),
        ("byterobust-dense", {**DENSE, IMPLICIT: 15}, 175, 1),
        ("byterobust-moe", {**MOE, IMPLICIT: 9}, 125, 1),
        ("byterobust-fleet", FLEET, 55_365, 200),
        ("transom", TRANSOM, 377, 1),
    ],
)
def test_a_population_has_the_counts_of_its_paper(
    name: str, table: dict[str | tuple[str, ...], int], total: int, share: int
) -> None:
    assert sum(table.values()) == total
    scenario = load_scenario(name)
    counts = Counter(fault.kind.name for seed in SEEDS for fault in true_faults(scenario, seed))
    rows = {(row,) if isinstance(row, str) else row: count for row, count in table.items()}
    assert {kind.name for kind in scenario.faults} == {kind for row in rows for kind in row}
    for kinds, count in {**rows, tuple(counts): total}.items():
        expected = len(SEEDS) * count / share
        found = sum(counts[kind] for kind in kinds)
        assert abs(found - expected) < SPREAD * expected**0.5 + 1, f"{kinds}: {found} faults, {expected:.0f} expected"
