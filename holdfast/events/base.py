"""The base of all events, and the five kinds of statement that they make."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import ClassVar

import msgspec

from holdfast.events.parts.scalars import Count, Id, Moment, Name


class EventClass(StrEnum):
    """Kinds of statement that an event makes; the third token of its subject."""

    EVIDENCE = "evidence"  # a fact that an agent saw
    FINDING = "finding"  # a conclusion drawn from facts
    DECISION = "decision"  # a decision, with its reason
    ACTION = "action"  # an action that was carried out
    METRIC = "metric"  # samples


def _type_name(class_name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", class_name).lower()


class Event(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag=_type_name, omit_defaults=True):
    """Base of all events."""

    id: Id
    """UUIDv7."""
    at: Moment
    source: str
    """The process that publishes it: a service's name, or `agent/<node>`."""
    job: Name | None = None
    generation: Count | None = None
    node: Name | None = None
    cause: Id | None = None
    """Id of the event that led to this one."""
    incident: Id | None = None
    """Id of the incident that it belongs to."""

    event_class: ClassVar[EventClass]

    @property
    def type(self) -> str:
        """The event's type, as in its subject and body."""
        return str(self.__struct_config__.tag)


class Evidence(Event, frozen=True, kw_only=True, tag=_type_name, omit_defaults=True):
    """A fact from an agent."""

    event_class: ClassVar[EventClass] = EventClass.EVIDENCE


class Finding(Event, frozen=True, kw_only=True, tag=_type_name, omit_defaults=True):
    """A conclusion drawn from evidence; it changes nothing by itself."""

    event_class: ClassVar[EventClass] = EventClass.FINDING


class Decision(Event, frozen=True, kw_only=True, tag=_type_name, omit_defaults=True):
    """A decision of a service."""

    reason: str
    """Reason as a sentence that an engineer can check."""

    event_class: ClassVar[EventClass] = EventClass.DECISION


class Action(Event, frozen=True, kw_only=True, tag=_type_name, omit_defaults=True):
    """An action that was carried out."""

    event_class: ClassVar[EventClass] = EventClass.ACTION


class Metric(Event, frozen=True, kw_only=True, tag=_type_name, omit_defaults=True):
    """Samples. The bus keeps them for an hour, the historian for good."""

    event_class: ClassVar[EventClass] = EventClass.METRIC
