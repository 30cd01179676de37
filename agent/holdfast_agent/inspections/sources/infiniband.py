"""InfiniBand and RoCE ports from /sys/class/infiniband: their state, the growth of their error counters, and whether
ranks that communicate by RDMA still do (ByteRobust §4.1)."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

import msgspec

from holdfast.node.machine import Machine, entries, number, text
from holdfast.settings.inspections import InspectionPolicy, listed
from holdfast.symptoms import Symptom
from holdfast_agent.inspections.check import Check, Reading, Trouble

FLAPS = "link_downed"
LINK_ERRORS = (
    "symbol_error",
    "link_error_recovery",
    "port_rcv_errors",
    "local_link_integrity_errors",
    "excessive_buffer_overrun_errors",
)
"""Counters that show a bad cable or transceiver. Old counters saturate (`link_downed` at 255) and then show nothing."""

RETRIES = ("local_ack_timeout_err", "packet_seq_err", "rnr_nak_retry_err", "out_of_sequence", "req_cqe_error")
"""The card's counters of lost or late packets. Congestion raises them too, so they are only a hint."""


DATA = ("port_rcv_data", "port_xmit_data")
"""Counters of data, in words of four bytes."""

MOVED_BYTES_PER_MIN = 1 << 20
"""Less than this is management and heartbeats, and no training."""


class Port(msgspec.Struct, frozen=True, kw_only=True):
    """One port in one reading; `state` is a word such as ACTIVE, `rate` the speed in sysfs."""

    name: str
    state: str
    physical: str
    rate: str
    layer: str
    counters: Mapping[str, int]

    @property
    def is_up(self) -> bool:
        return self.state == "ACTIVE" and self.physical == "LinkUp"

    @property
    def has_worked(self) -> bool:
        """True if it has carried data since boot."""
        return self.is_up or self.counters.get("port_rcv_data", 0) > 0


class RankTraffic:
    """The data of all ports together since the present ranks run."""

    def __init__(self, silent_s: float) -> None:
        self._silent_s = silent_s
        self._ranks: tuple[int, ...] = ()
        self._moved_at: float | None = None
        """When data moved last; None: it never did under these ranks."""

    def silence(self, ranks: tuple[int, ...], bytes_per_min: float, now: float) -> list[Trouble]:
        """Return a hint if these ranks have moved data over RDMA before, and no data has moved for `silent_s`."""
        if ranks != self._ranks:
            self._ranks, self._moved_at = ranks, None
        if bytes_per_min >= MOVED_BYTES_PER_MIN:
            self._moved_at = now
        if not ranks or self._moved_at is None or now - self._moved_at < self._silent_s:
            return []
        detail = f"no port has carried data for {(now - self._moved_at) / 60:.0f} minutes, and the ranks run on"
        # Where a job makes no progress, all of its nodes report it: it is the job's then, and no node's.
        return [
            Trouble(
                kind="silence", detail=detail, confidence="hint", symptom=Symptom.JOB_HANG, shared="RDMA of the job"
            )
        ]


class InfiniBand:
    """Watches every port. `ranks` returns the processes of the node's ranks, `clock` monotonic seconds."""

    def __init__(
        self,
        machine: Machine,
        policy: InspectionPolicy,
        clock: Callable[[], float] = time.monotonic,
        ranks: Callable[[], Collection[int]] = tuple,
    ) -> None:
        self._ranks = ranks
        self._traffic = RankTraffic(policy.rdma_silent_s)
        self._folder = machine.sys / "class/infiniband"
        self._policy = policy
        self._needed = frozenset(listed(policy.interfaces))
        self._clock = clock
        self._before: dict[str, Port] = {}
        self._rates: dict[str, str] = {}
        self._been_up: set[str] = set()
        self._looked_at = 0.0

    def read(self) -> Reading:
        now, found = self._clock(), ports(self._folder)
        if self._needed:
            found = {name: port for name, port in found.items() if name.split(":")[0] in self._needed}
        if not found and not self._been_up:
            return Reading(absent=f"no card in {self._folder}")
        minutes = (now - self._looked_at) / 60
        troubles: list[Trouble] = []
        for name, port in found.items():
            if port.has_worked:
                self._been_up.add(name)
            troubles += self._of(port, self._before.get(name), minutes)
        troubles += [
            Trouble(device=name, kind="gone", detail="the port has vanished, and its card with it")
            for name in sorted(self._been_up - set(found))
        ]
        if minutes > 0:
            moved = sum(_moved_bytes(port, self._before.get(name)) for name, port in found.items())
            troubles += self._traffic.silence(tuple(self._ranks()), moved / minutes, now)
        self._before, self._looked_at = found, now
        return Reading(
            troubles=tuple(troubles),
            seen={name: f"{port.state.lower()}, {port.rate}" for name, port in found.items()},
        )

    def _of(self, port: Port, before: Port | None, minutes: float) -> list[Trouble]:
        troubles: list[Trouble] = []
        if not port.is_up and port.name in self._been_up:
            detail = f"the port is {port.state or 'without a state'}, its link {port.physical or 'without a state'}"
            troubles.append(Trouble(device=port.name, kind="link", detail=detail))
        if port.is_up:
            usual = self._rates.setdefault(port.name, port.rate)
            if _gigabits(port.rate) < _gigabits(usual):
                detail = f"the link came back at {port.rate}, before it had {usual}"
                troubles.append(
                    Trouble(
                        device=port.name, kind="rate", detail=detail, confidence="hint", symptom=Symptom.MFU_DECLINE
                    )
                )
            elif port.rate != usual:
                self._rates[port.name] = port.rate
        if before is None or minutes <= 0:
            return troubles

        def grown(name: str) -> int:
            # A counter that was reset starts over.
            return max(0, port.counters.get(name, 0) - before.counters.get(name, 0))

        # The current outage is reported already.
        flaps = grown(FLAPS) - (1 if not port.is_up and before.is_up else 0)
        if flaps > 0:
            troubles.append(
                Trouble(
                    device=port.name,
                    kind="flap",
                    detail=f"the link went down and came back {flaps} times since the last look",
                    is_momentary=True,
                    times=flaps,
                )
            )
        for kind, names in (("errors", LINK_ERRORS), ("retries", RETRIES)):
            many = {name: grown(name) / minutes for name in names}
            many = {name: rate for name, rate in many.items() if rate > self._policy.link_errors_per_min_max}
            if many:
                rates = ", ".join(f"{name} {rate:.0f} a minute" for name, rate in sorted(many.items()))
                allowed = f"the limit is {self._policy.link_errors_per_min_max:g}"
                troubles.append(
                    Trouble(
                        device=port.name,
                        kind=kind,
                        detail=f"{rates}; {allowed}",
                        confidence="tolerate" if kind == "errors" else "hint",
                    )
                )
        return troubles


def infiniband_check(policy: InspectionPolicy, machine: Machine, ranks: Callable[[], Collection[int]]) -> Check:
    """Return the check of InfiniBand and RoCE ports. `ranks` returns the pids of the node's ranks."""
    return Check(
        name="infiniband",
        source="/sys/class/infiniband",
        read=InfiniBand(machine, policy, ranks=ranks).read,
        interval_s=policy.network_s,
        compares=True,
        confidence="tolerate",
        symptom=Symptom.INFINIBAND_ERROR,
    )


def _moved_bytes(port: Port, before: Port | None) -> int:
    """Return the data since the last reading. A counter that was reset starts over."""
    known = before.counters if before is not None else port.counters
    return sum(4 * max(0, port.counters.get(name, 0) - known.get(name, 0)) for name in DATA)


def ports(folder: Path) -> dict[str, Port]:
    """Return every port of every card, as `mlx5_0:1`."""
    found: dict[str, Port] = {}
    for card in entries(folder):
        for place in entries(card / "ports"):
            name = f"{card.name}:{place.name}"
            found[name] = Port(
                name=name,
                state=_word(text(place / "state")),
                physical=_word(text(place / "phys_state")),
                rate=text(place / "rate") or "no rate",
                layer=text(place / "link_layer") or "",
                counters=_counters(place),
            )
    return found


def _counters(place: Path) -> dict[str, int]:
    wanted = {FLAPS, *DATA, *LINK_ERRORS}
    found = {name: number(place / "counters" / name) for name in wanted}
    found |= {name: number(place / "hw_counters" / name) for name in RETRIES}
    return {name: value for name, value in found.items() if value is not None}


def _word(state: str | None) -> str:
    """Return `4: ACTIVE` without its number."""
    return (state or "").partition(":")[2].strip()


def _gigabits(rate: str) -> float:
    try:
        return float(rate.split()[0])
    except (IndexError, ValueError):
        return 0.0
