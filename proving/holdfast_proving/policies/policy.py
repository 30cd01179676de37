"""A policy: settings of the production code, and functions of it that are replaced."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from holdfast.settings.load import Settings, load
from holdfast_proving.scenario.scenario import Scenario
from holdfast_proving.truth.ledger import Ledger
from holdfast_proving.world.agenda import Agenda
from holdfast_proving.world.training import Training


class Insight(msgspec.Struct, frozen=True):
    """The truth, for policies that know it."""

    ledger: Ledger
    agenda: Agenda
    trainings: tuple[Training, ...]

    def training_on(self, machines: Iterable[str]) -> Training | None:
        """Return the training whose run has one of these machines."""
        wanted = frozenset(machines)
        return next((it for it in self.trainings if it.run is not None and wanted & it.run.up.keys()), None)


class Patch(msgspec.Struct, frozen=True):
    """A function of production, by the module that uses it, and how to make its replacement from the original."""

    owner: Any
    name: str
    make: Callable[[Callable[..., Any], Insight], Callable[..., Any]]


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    settings: Settings = Settings()
    patches: tuple[Patch, ...] = ()
    about: str = ""
    conditions: Callable[[Scenario], Scenario] = lambda scenario: scenario
    """What is different under this policy in the world: how long restarts take, when failures are noticed. Never which
    faults there are."""

    @contextmanager
    def in_force(self, insight: Insight) -> Iterator[None]:
        """Replace its functions in this process."""
        originals = [getattr(it.owner, it.name) for it in self.patches]
        try:
            for it, original in zip(self.patches, originals, strict=True):
                setattr(it.owner, it.name, it.make(original, insight))
            yield
        finally:
            for it, original in zip(self.patches, originals, strict=True):
                setattr(it.owner, it.name, original)


TODAY = Policy(name="today", about="the production code with default settings")


def load_policy(path: str) -> Policy:
    """Return the policy of a TOML file with settings, as `holdfast.toml` has them. Raises ConfigRefused."""
    settings, _ = load({}, file=path)
    return Policy(name=path.rpartition("/")[2].removesuffix(".toml"), settings=settings, about=f"settings of {path}")
