"""What all events share, and the five kinds of statement that they make."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import ClassVar

import msgspec

from holdfast.events.parts.scalars import Count, Id, Moment, Name


class EventClass(StrEnum):
    """What kind of statement an event makes: the third token of its subject."""

    EVIDENCE = "evidence"  # a fact that an agent saw
    FINDING = "finding"  # a conclusion drawn from facts
    DECISION = "decision"  # what shall be done, and why
    ACTION = "action"  # what was done
    METRIC = "metric"  # samples


def _type_name(class_name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", class_name).lower()


class Event(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag=_type_name, omit_defaults=True):
    """What all events share.

    `id` is a UUIDv7. `cause` is the id of the event that led to this one; `incident` the incident it
    belongs to. `source` is the process that says it: a service's name, or `agent/<node>`.
    """

    id: Id
    at: Moment
    source: str
    job: Name | None = None
    generation: Count | None = None
    node: Name | None = None
    cause: Id | None = None
    incident: Id | None = None

    event_class: ClassVar[EventClass]

    @property
    def type(self) -> str:
        """The event's type, as it stands in its subject and body."""
        return str(self.__struct_config__.tag)


class Evidence(Event, frozen=True, kw_only=True, tag=_type_name, omit_defaults=True):
    """A fact from an agent."""

    event_class: ClassVar[EventClass] = EventClass.EVIDENCE


class Finding(Event, frozen=True, kw_only=True, tag=_type_name, omit_defaults=True):
    """A conclusion drawn from evidence; it changes nothing by itself."""

    event_class: ClassVar[EventClass] = EventClass.FINDING


class Decision(Event, frozen=True, kw_only=True, tag=_type_name, omit_defaults=True):
    """What shall be done, with the reason in words that an engineer can check."""

    reason: str

    event_class: ClassVar[EventClass] = EventClass.DECISION


class Action(Event, frozen=True, kw_only=True, tag=_type_name, omit_defaults=True):
    """What was done."""

    event_class: ClassVar[EventClass] = EventClass.ACTION


class Metric(Event, frozen=True, kw_only=True, tag=_type_name, omit_defaults=True):
    """Samples; kept briefly on the bus and for good by the historian."""

    event_class: ClassVar[EventClass] = EventClass.METRIC
