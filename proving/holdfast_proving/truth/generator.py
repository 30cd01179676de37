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
    """The machines of a scenario, by class and by rack."""

    classes: dict[str, tuple[str, ...]]
    racks: dict[str, tuple[str, ...]]

    @property
    def machines(self) -> tuple[str, ...]:
        return tuple(machine for machines in self.classes.values() for machine in machines)

    def rack_of(self, machine: str) -> str:
        return next(rack for rack, machines in self.racks.items() if machine in machines)


def racks_of(scenario: Scenario) -> Racks:
    classes, racks = {}, {}
    for kind in scenario.machines:
        names = tuple(f"{kind.name}-{number}" for number in range(kind.count))
        classes[kind.name] = names
        for first in range(0, kind.count, kind.per_rack):
            racks[f"{kind.name}-rack-{first // kind.per_rack}"] = names[first : first + kind.per_rack]
    return Racks(classes, racks)


def true_faults(scenario: Scenario, seed: int) -> list[Fault]:
    """Return the faults of all kinds, in the order of their beginning."""
    where = racks_of(scenario)
    found = [fault for kind in scenario.faults for fault in _of_kind(scenario, where, kind, seed)]
    found += [_struck(scenario, where, number, seed) for number in range(len(scenario.strikes))]
    ordered = sorted(found, key=lambda fault: (fault.since_s, fault.seed))
    return [msgspec.structs.replace(fault, number=number) for number, fault in enumerate(ordered)]


def _of_kind(scenario: Scenario, where: Racks, kind: FaultKind, seed: int) -> Iterator[Fault]:
    if not kind.per_day:
        return
    for place, machines in _places(scenario, where, kind).items():
        chance = Random(f"{seed}/{kind.name}/{place}")
        at_s = chance.expovariate(kind.per_day / DAY_S)
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
            at_s += lasts_s + chance.expovariate(kind.per_day / DAY_S)


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
        case "rack":
            return {rack: names for rack, names in where.racks.items() if set(names) <= set(machines)}
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
