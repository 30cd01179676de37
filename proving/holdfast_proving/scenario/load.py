"""Scenarios from TOML files: the shipped ones by name, any other by path."""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path

import msgspec

from holdfast.ids import checked_name
from holdfast.settings.inspections import CHECKS
from holdfast_proving.scenario import forms, versions
from holdfast_proving.scenario.last_words import LAST_WORDS
from holdfast_proving.scenario.scenario import Scenario

SHIPPED = Path(__file__).parent.parent / "scenarios"


class ScenarioRefused(ValueError):
    """A scenario cannot be read or contradicts itself; the message names the file, the field and the cure."""


def shipped() -> list[str]:
    """Return the names of the scenarios that come with the package."""
    return sorted(_shipped())


def _shipped() -> dict[str, Path]:
    return {path.stem: path for path in SHIPPED.rglob("*.toml")}


def load_scenario(name_or_path: str) -> Scenario:
    """Return a shipped scenario by its name, or the one in a file. Raises ScenarioRefused."""
    path = _shipped().get(name_or_path) or Path(name_or_path)
    if not path.is_file():
        raise ScenarioRefused(f"there is no scenario {name_or_path!r}: give a file, or one of {', '.join(shipped())}")
    try:
        return read_scenario(path.read_text())
    except ScenarioRefused as error:
        raise ScenarioRefused(f"{path}: {error}") from None
    except UnicodeDecodeError as error:
        raise ScenarioRefused(f"{path} is not UTF-8: {error}") from error


def read_scenario(text: str) -> Scenario:
    """Return the scenario in a TOML text. Raises ScenarioRefused."""
    try:
        scenario = msgspec.convert(tomllib.loads(text), Scenario)
    except (tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise ScenarioRefused(str(error).replace("`", "")) from error
    _require_names(scenario)
    for kind in scenario.faults:
        if kind.effect == "crash" and kind.prints not in LAST_WORDS:
            raise ScenarioRefused(
                f"fault {kind.name}: a crash prints something: prints = {kind.prints!r}; {_known(kind.prints)}"
            )
        if kind.effect == "alert" and kind.alert is None:
            raise ScenarioRefused(f"fault {kind.name}: its effect is an alert, so it needs a table alert")
        if kind.alert is not None and kind.alert.check not in CHECKS:
            raise ScenarioRefused(
                f"fault {kind.name}: there is no check {kind.alert.check!r}; there are {_listed(CHECKS)}"
            )
        if kind.at_start and (kind.effect, kind.place) != ("crash", "machine"):
            raise ScenarioRefused(f"fault {kind.name}: at_start is for machines: effect = 'crash', place = 'machine'")
        if kind.same_step and kind.place != "job":
            raise ScenarioRefused(f"fault {kind.name}: same_step is for faults of a job: place = 'job'")
        if kind.effect == "silence" and (
            kind.place != "cluster" or kind.lasts != "while" or scenario.chaos is not None
        ):
            raise ScenarioRefused(
                f"fault {kind.name}: a silence is of all machines: place = 'cluster', lasts = 'while', and no [chaos]"
            )
        if kind.lasts == "repair" and kind.place != "machine":
            raise ScenarioRefused(
                f"fault {kind.name}: only machines are repaired: lasts = 'while', or place = 'machine'"
            )
    for refusal in (*forms.refusals(scenario), *versions.refusals(scenario)):
        raise ScenarioRefused(refusal)
    needed = sum(job.nodes for job in scenario.jobs if not job.stopped_at_h)
    if needed > sum(machines.count for machines in scenario.machines):
        raise ScenarioRefused(f"the jobs need {needed} nodes, and there are fewer machines")
    return scenario


def _require_names(scenario: Scenario) -> None:
    _once("class of machines", [machines.name for machines in scenario.machines])
    _once("job", [job.name for job in scenario.jobs])
    _once("fault", [kind.name for kind in scenario.faults])
    kinds = {kind.name for kind in scenario.faults}
    owners = {machines.name for machines in scenario.machines} | {job.name for job in scenario.jobs}
    for strike in scenario.strikes:
        if strike.kind not in kinds:
            raise ScenarioRefused(f"a strike is of kind {strike.kind!r}, which is no fault: there are {_listed(kinds)}")
    machines = {f"{kind.name}-{number}" for kind in scenario.machines for number in range(kind.count)}
    for release in scenario.releases:
        if release.machine not in machines:
            raise ScenarioRefused(f"a release is of machine {release.machine!r}, which there is not")
    for kind in scenario.faults:
        for name in kind.rates:
            if name not in {machines.name for machines in scenario.machines}:
                raise ScenarioRefused(f"fault {kind.name} has a rate for {name!r}, which is no class of machines")
        if kind.of and kind.of not in owners:
            raise ScenarioRefused(f"fault {kind.name} is of {kind.of!r}: there are {_listed(owners)}")


def _once(what: str, names: list[str]) -> None:
    for name, count in Counter(names).items():
        try:
            checked_name(name.replace("_", "-"), what)
        except ValueError as error:
            raise ScenarioRefused(str(error)) from error
        if count > 1:
            raise ScenarioRefused(f"there are {count} of {what} {name!r}: names are given once")


def _known(name: str) -> str:
    near = get_close_matches(name, LAST_WORDS, n=1)
    return f"perhaps {near[0]!r} is meant" if near else f"there are {_listed(LAST_WORDS)}"


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))
