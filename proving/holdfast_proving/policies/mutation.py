"""How a judgement of production is broken on purpose: the tools of wrong policies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from holdfast.events import Event
from holdfast.settings.decisions.ladder import LadderPolicy
from holdfast.settings.load import Settings
from holdfast.symptoms import Symptom
from holdfast_controller.plan.draft import JobDraft
from holdfast_controller.plan.incident import recovery
from holdfast_controller.plan.incident.incident import Failure, Incident, Rung
from holdfast_controller.plan.incident.rung_choice import LadderOptions, RungChoice
from holdfast_controller.plan.planner import TRAINING
from holdfast_proving.policies.policy import Insight, Patch

Function = Callable[..., Any]
Change = Callable[[Function, Insight], Any]


class _Handlers:
    """The handlers of a training job's events, whose entries are replaced as functions of a module are."""

    def __getattr__(self, event: str) -> Function:
        return TRAINING.events[_kind(event)]

    def __setattr__(self, event: str, handler: Function) -> None:
        assert isinstance(TRAINING.events, dict)
        TRAINING.events[_kind(event)] = handler


def _kind(event: str) -> type[Event]:
    return next(kind for kind in TRAINING.events if kind.__name__ == event)


HANDLERS = _Handlers()


def always(result: Any) -> Change:
    """Replace a function by one that returns this."""
    return lambda original, insight: lambda *args, **named: result


def value(replacement: Any) -> Change:
    """Replace what is no function."""
    return lambda original, insight: replacement


def choosing(change: Callable[[RungChoice, Failure, LadderOptions], RungChoice]) -> Patch:
    """Change what the ladder chooses."""

    def make(original: Function, insight: Insight) -> Function:
        def choose(incident: Incident, failure: Failure, options: LadderOptions, policy: LadderPolicy) -> RungChoice:
            return change(original(incident, failure, options, policy), failure, options)

        return choose

    return Patch(recovery, "choose", make)


def taking(change: Callable[[JobDraft, Failure, RungChoice], RungChoice]) -> Patch:
    """Change the rung that is taken, wherever it was chosen."""

    def make(original: Function, insight: Insight) -> Function:
        def take(draft: JobDraft, failure: Failure, choice: RungChoice, options: LadderOptions) -> None:
            original(draft, failure, change(draft, failure, choice), options)

        return take

    return Patch(recovery, "take", make)


def blames(*symptoms: Symptom) -> Patch:
    """Evict the node that reports one of these symptoms."""

    def change(choice: RungChoice, failure: Failure, options: LadderOptions) -> RungChoice:
        if failure.symptom in symptoms and failure.node in options.members:
            return RungChoice(rung=Rung.EVICT, reason=failure.text, nodes=(failure.node,))
        return choice

    return choosing(change)


def but_for(symptom: Symptom) -> Change:
    """Leave failures of one symptom out."""

    def make(original: Function, insight: Insight) -> Function:
        def handle(draft: JobDraft, failure: Failure) -> None:
            if failure.symptom is not symptom:
                original(draft, failure)

        return handle

    return make


def with_option(**changes: Any) -> Change:
    """Change what the ladder may do, or what it knows."""
    return lambda original, insight: lambda draft, failure: msgspec.structs.replace(original(draft, failure), **changes)


def ladder_of(**changes: Any) -> Settings:
    return Settings(ladder=LadderPolicy(**changes))
