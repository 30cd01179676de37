"""Cost of a node's inspections: processor time of each one, of all together, and of a line of the kernel's log.

    python bench/inspections.py            50 looks of each check, then all of them as an agent runs them for a minute
    python bench/inspections.py --quick    10 looks, 10 seconds

Twice: on this machine as it is, and on a large one as far as files can say: ten interfaces and nine InfiniBand ports in
the form of sysfs. What NVML itself costs shows only where there is a GPU; the process that asks is counted with the
agent's. The limit is 1 % of one core for all checks together.
"""

from __future__ import annotations

import argparse
import asyncio
import resource
import tempfile
import time
from pathlib import Path
from statistics import median

import machine
from report import final_line, rounded, table, tell

from holdfast.clock import system_now
from holdfast.engines.hardware.kernel_lines import read_line
from holdfast.node.machine import Machine
from holdfast.settings.inspections import InspectionPolicy
from holdfast_agent.inspections.check import Check
from holdfast_agent.inspections.node_hardware import HardwareFinder, gpus_of
from holdfast_agent.inspections.register import registered
from holdfast_agent.inspections.runner import Inspections, look
from holdfast_agent.inspections.sources.gpu import GpuInspection
from holdfast_agent.inspections.sources.kernel_log import KernelLog
from holdfast_agent.inspections.threads import Abandonable

LIMIT_PERCENT = 1.0
LOOKS, LOOKS_QUICK = 50, 10
TOGETHER_S, TOGETHER_S_QUICK = 60.0, 10.0
LINES = 20_000
COMMON_LINE = "systemd[1]: Started Session 42 of User root, which says nothing of this machine's health."
XID_LINE = "NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, name=python, GPU has fallen off the bus."
INTERFACES, PORTS = 10, 9
AS_HERE = ("pressure/cpu", "pressure/memory", "meminfo", "self/mountinfo", "self/cgroup", "net/route")
STATISTICS = ("rx_packets", "tx_packets", "rx_errors", "tx_errors", "rx_missed_errors", "tx_dropped", "rx_fifo_errors")
COUNTERS = ("link_downed", "symbol_error", "link_error_recovery", "port_rcv_errors", "port_rcv_data")
COUNTERS_2 = ("local_ack_timeout_err", "packet_seq_err", "rnr_nak_retry_err", "out_of_sequence", "req_cqe_error")


def cpu_s() -> float:
    """Processor seconds of this process and of those that it started and that have ended."""
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


def large_machine(root: Path) -> Machine:
    """One with many cards; what else it says is this machine's."""
    for name in AS_HERE:
        write(root / "proc" / name, (Path("/proc") / name).read_text())
    for number in range(INTERFACES):
        folder = root / f"sys/class/net/eth{number}"
        for name, value in (("flags", "0x1003"), ("carrier", "1"), ("operstate", "up"), ("carrier_down_count", "1")):
            write(folder / name, value)
        for name in ("device/vendor", *(f"statistics/{name}" for name in STATISTICS)):
            write(folder / name, "1000000")
    for number in range(PORTS):
        folder = root / f"sys/class/infiniband/mlx5_{number}/ports/1"
        for name, value in (("state", "4: ACTIVE"), ("phys_state", "5: LinkUp"), ("rate", "400 Gb/sec (4X NDR)")):
            write(folder / name, value)
        for name in (*(f"counters/{name}" for name in COUNTERS), *(f"hw_counters/{name}" for name in COUNTERS_2)):
            write(folder / name, "0")
    return Machine(proc=root / "proc", sys=root / "sys")


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n")


def checks_of(on: Machine) -> tuple[tuple[Check, ...], GpuInspection, KernelLog]:
    policy = InspectionPolicy()
    here = (Path.cwd(), Path(tempfile.gettempdir()))

    def paths() -> tuple[Path, ...]:
        return here

    gpus = gpus_of(on, policy, {})
    gpu = GpuInspection(policy, gpus)
    log = KernelLog(on, HardwareFinder(on, policy, gpus, paths, lambda: ()))
    return registered(policy, on, paths, lambda: (), gpu, log), gpu, log


async def each(checks: tuple[Check, ...], looks: int) -> list[dict[str, object]]:
    """The cost of one look of each check, after the first."""
    found: list[dict[str, object]] = []
    for check in checks:
        reader = Abandonable(check.name, check.read)
        reading = await look(check, reader)
        took: list[float] = []
        for _ in range(looks):
            before = cpu_s()
            await look(check, reader)
            took.append(cpu_s() - before)
        cost_s = sum(took) / looks
        found.append(
            {
                "check": check.name,
                "state": "not here" if reading.absent else "reads",
                "interval_s": check.interval_s,
                "look_ms": rounded(1e3 * cost_s, 3),
                "core_percent": rounded(100 * cost_s / check.interval_s, 4),
            }
        )
    return found


async def together(checks: tuple[Check, ...], for_s: float) -> float:
    """Percent of a core that all checks use as an agent runs them, without the first looks."""
    looked = asyncio.Event()
    inspections = Inspections(checks, lambda check, said: None, system_now, 300.0, looked.set)
    running = asyncio.create_task(inspections.run())
    await looked.wait()
    before, began = cpu_s(), time.monotonic()
    await asyncio.sleep(for_s)
    used = 100 * (cpu_s() - before) / (time.monotonic() - began)
    running.cancel()
    await asyncio.wait([running])
    return used


def line_us(line: str) -> float:
    """Microseconds for one line of the kernel's log."""
    rounds: list[float] = []
    for _ in range(5):
        began = time.process_time()
        for _ in range(LINES // 5):
            read_line(line)
        rounds.append(1e6 * (time.process_time() - began) / (LINES // 5))
    return median(rounds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="10 looks, 10 seconds")
    quick = parser.parse_args().quick
    figures: dict[str, object] = {"machine": machine.describe(), "load": machine.load(), "quick": quick}
    with tempfile.TemporaryDirectory() as root:
        for name, on in (("this machine", Machine()), ("a large machine", large_machine(Path(root)))):
            tell(f"{name}: each check")
            checks, gpu, log = checks_of(on)
            rows = asyncio.run(each(checks, LOOKS_QUICK if quick else LOOKS))
            tell(f"{name}: all together")
            total = asyncio.run(together(checks, TOGETHER_S_QUICK if quick else TOGETHER_S))
            gpu.close()
            log.close()
            print(f"\n{name}")
            table(list(rows[0]), [list(row.values()) for row in rows])
            print(f"all together: {total:.3f} % of a core, {LIMIT_PERCENT:g} are allowed")
            figures[name.replace(" ", "_")] = {"checks": rows, "together_core_percent": rounded(total, 4)}
    lines = {"common": rounded(line_us(COMMON_LINE), 2), "xid": rounded(line_us(XID_LINE), 2)}
    print(f"\na line of the kernel's log: {lines['common']} us, one with an Xid: {lines['xid']} us")
    final_line(figures | {"line_us": lines, "limit_core_percent": LIMIT_PERCENT})


if __name__ == "__main__":
    main()
