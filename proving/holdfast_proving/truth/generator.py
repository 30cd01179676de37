"""All faults of a simulation, from scenario and seed alone: no decision has any influence on them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from random import Random

import msgspec

from holdfast_proving.scenario.scenario import FaultKind, Scenario
from holdfast_proving.truth.faults import Fault

DAY_S, HOUR_S = 86400.0, 3600.0
CLUSTER = "cluster"


class Racks(msgspec.Struct, frozen=True):
    """The machines of a scenario, by class, and by what they share."""

    classes: dict[str, tuple[str, ...]]
    racks: dict[str, tuple[str, ...]]
    switches: dict[str, tuple[str, ...]] = {}
    feeds: dict[str, tuple[str, ...]] = {}
    hosts: dict[str, str] = {}
    """Host of each machine that shares its processors with others."""

    @property
    def machines(self) -> tuple[str, ...]:
        return tuple(machine for machines in self.classes.values() for machine in machines)


def racks_of(scenario: Scenario) -> Racks:
    found = Racks({}, {}, {}, {}, {})
    for kind in scenario.machines:
        names = tuple(f"{kind.name}-{number}" for number in range(kind.count))
        found.classes[kind.name] = names
        racks = _in_parts(f"{kind.name}-rack", names, kind.per_rack)
        found.racks.update(racks)
        if kind.are_racks_hosts:
            found.hosts.update({machine: rack for rack, machines in racks.items() for machine in machines})
        found.switches.update(_in_parts(f"{kind.name}-switch", names, kind.per_switch))
        found.feeds.update(_in_parts(f"{kind.name}-power", names, kind.per_feed))
    return found


def _in_parts(name: str, machines: tuple[str, ...], size: int) -> dict[str, tuple[str, ...]]:
    if not size:
        return {}
    return {f"{name}-{first // size}": machines[first : first + size] for first in range(0, len(machines), size)}


def true_faults(scenario: Scenario, seed: int) -> list[Fault]:
    """Return the faults of all kinds, in the order of their beginning."""
    where = racks_of(scenario)
    found = [fault for kind in scenario.faults for fault in _of_kind(scenario, where, kind, seed)]
    found += _misfits(scenario, where, seed)
    found += _bugs(scenario, seed)
    found += [_struck(scenario, where, number, seed) for number in range(len(scenario.strikes))]
    ordered = sorted(found, key=lambda fault: (fault.since_s, fault.seed))
    return [msgspec.structs.replace(fault, number=number) for number, fault in enumerate(ordered)]


def _misfits(scenario: Scenario, where: Racks, seed: int) -> list[Fault]:
    """Return a fault for each machine that has fewer GPUs than some job puts ranks on it."""
    most = max(job.ranks_per_node for job in scenario.jobs)
    return [
        Fault(
            number=0,
            kind=FaultKind(
                name="too_few_gpus",
                effect="crash",
                lasts="while",
                again_h=0.0,
                prints="no_device",
                over_ranks=machines.ranks_max,
                found_by_checks=1.0,
            ),
            place=name,
            machines=(name,),
            since_s=0.0,
            lasts_s=(scenario.days + 1.0) * DAY_S,
            seed=f"{seed}/too_few_gpus/{name}",
        )
        for machines in scenario.machines
        if 0 < machines.ranks_max < most
        for name in where.classes[machines.name]
    ]


def _bugs(scenario: Scenario, seed: int) -> list[Fault]:
    """Return a fault for each bug of a version of some job's code: it waits for that version to run."""
    return [
        Fault(
            number=0,
            kind=msgspec.structs.replace(kind, lasts="while"),
            place=kind.of,
            machines=(),
            since_s=0.0,
            lasts_s=(scenario.days + 1.0) * DAY_S,
            seed=f"{seed}/{kind.name}/{kind.version}",
        )
        for kind in scenario.faults
        if kind.version
    ]


def _of_kind(scenario: Scenario, where: Racks, kind: FaultKind, seed: int) -> Iterator[Fault]:
    for place, machines in _places(scenario, where, kind).items():
        per_day = _rate(where, kind, machines)
        if not per_day:
            continue
        chance = Random(f"{seed}/{kind.name}/{place}")
        at_s = chance.expovariate(per_day / DAY_S)
        while at_s < scenario.days * DAY_S:
            lasts_s = _lasts_s(scenario, kind, chance)
            yield Fault(
                number=0,
                kind=kind,
                place=place,
                machines=machines,
                since_s=at_s,
                lasts_s=lasts_s,
                seed=f"{seed}/{kind.name}/{place}/{at_s:.3f}",
            )
            at_s += lasts_s + chance.expovariate(per_day / DAY_S)


def _rate(where: Racks, kind: FaultKind, machines: tuple[str, ...]) -> float:
    """Return the rate at the place of these machines: that of their class, if it has one."""
    if not kind.rates or not machines:
        return kind.per_day
    name = next(name for name, names in where.classes.items() if machines[0] in names)
    return kind.rates.get(name, kind.per_day)


def _struck(scenario: Scenario, where: Racks, number: int, seed: int) -> Fault:
    strike = scenario.strikes[number]
    kind = scenario.kind(strike.kind)
    chance = Random(f"{seed}/strike/{number}")
    places = _places(scenario, where, kind)
    place = strike.place or chance.choice(sorted(places))
    return Fault(
        number=0,
        kind=kind,
        place=place,
        machines=places[place],
        since_s=strike.at_h * HOUR_S,
        lasts_s=kind.lasts_h * HOUR_S if kind.lasts == "while" else _lasts_s(scenario, kind, chance),
        seed=f"{seed}/strike/{number}",
    )


def _places(scenario: Scenario, where: Racks, kind: FaultKind) -> dict[str, tuple[str, ...]]:
    """Return the places that can have a fault of this kind, with their machines."""
    of_class = where.classes.get(kind.of)
    machines = of_class or where.machines
    match kind.place:
        case "machine":
            return {machine: (machine,) for machine in machines}
        case "rack" | "switch" | "power":
            groups = {"rack": where.racks, "switch": where.switches, "power": where.feeds}[kind.place]
            return {group: names for group, names in groups.items() if set(names) <= set(machines)}
        case "job":
            return {job.name: () for job in scenario.jobs if kind.of in ("", job.name)}
        case "cluster":
            return {CLUSTER: machines}


def _lasts_s(scenario: Scenario, kind: FaultKind, chance: Random) -> float:
    if kind.lasts == "moment":
        return 0.0
    if kind.lasts == "while":
        return chance.expovariate(1.0 / (kind.lasts_h * HOUR_S)) if kind.lasts_h else 0.0
    return scenario.repairs.median_h * HOUR_S * math.exp(chance.gauss(0.0, scenario.repairs.sigma))
