"""All checks of a node, in display order."""

from __future__ import annotations

import msgspec

from holdfast.node.machine import Machine
from holdfast.settings.inspections import PLUGIN, InspectionPolicy
from holdfast_agent.inspections.check import Check
from holdfast_agent.inspections.plugins import command_checks, entry_point_checks
from holdfast_agent.inspections.sources.clock import clock_check
from holdfast_agent.inspections.sources.container import container_check
from holdfast_agent.inspections.sources.dcgm import dcgm_check
from holdfast_agent.inspections.sources.disks import disks_check
from holdfast_agent.inspections.sources.foreign_processes import Ranks
from holdfast_agent.inspections.sources.gpu import GpuInspection, gpu_check
from holdfast_agent.inspections.sources.infiniband import infiniband_check
from holdfast_agent.inspections.sources.kernel_log import KernelLog, kernel_check
from holdfast_agent.inspections.sources.mounts import Paths, mounts_check
from holdfast_agent.inspections.sources.network import network_check
from holdfast_agent.inspections.sources.pressure import pressure_check
from holdfast_agent.inspections.sources.reachability import switch_check


def registered(
    policy: InspectionPolicy,
    machine: Machine,
    paths: Paths,
    ranks: Ranks,
    gpu: GpuInspection,
    log: KernelLog,
    *,
    address: str = "",
) -> tuple[Check, ...]:
    """Return the checks of a node that others reach at `address`."""
    configured = (
        network_check(policy, machine),
        infiniband_check(policy, machine, ranks),
        switch_check(policy, machine, address),
        gpu_check(policy, gpu),
        dcgm_check(policy),
        kernel_check(policy, log),
        disks_check(policy, machine, paths),
        mounts_check(policy, machine, paths),
        pressure_check(policy, machine, ranks),
        clock_check(policy),
        container_check(policy, machine),
        *command_checks(policy),
    )
    disabled = policy.names_disabled
    if "all" in disabled:
        return ()
    by_name = {check.name: check for check in configured}
    for check in entry_point_checks(policy):
        # A package cannot replace an existing check: its own has the longer name, by which it can always be disabled.
        name = check.name if check.name not in by_name else f"{PLUGIN}{check.name}"
        if f"{PLUGIN}{check.name}" not in disabled:
            by_name[name] = msgspec.structs.replace(check, name=name)
    return tuple(check for name, check in by_name.items() if name not in disabled)
