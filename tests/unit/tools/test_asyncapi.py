"""The published description of the bus is that of the code."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from holdfast.events import EVENT_TYPES
from tools import asyncapi
from tools.asyncapi import as_yaml

document = cache(asyncapi.document)
PUBLISHED = Path(__file__).parents[3] / "docs" / "asyncapi.yaml"


def test_the_published_description_is_up_to_date() -> None:
    assert PUBLISHED.read_text() == as_yaml(document()), "run: python -m tools.asyncapi > docs/asyncapi.yaml"


def test_it_reads_back_as_it_was() -> None:
    assert yaml.load(PUBLISHED.read_text(), yaml.CSafeLoader) == json.loads(json.dumps(document()))


def test_every_event_has_a_channel_and_a_schema() -> None:
    described = document()
    for tag, event in EVENT_TYPES.items():
        assert described["channels"][event.__name__]["address"].split(".")[3] == tag
        assert described["components"]["schemas"][event.__name__]["properties"]["type"] == {"enum": [tag]}


def test_every_reference_leads_somewhere() -> None:
    described = document()

    def references(value: Any) -> list[str]:
        if isinstance(value, dict):
            own = [value["$ref"]] if "$ref" in value else []
            return own + [reference for inner in value.values() for reference in references(inner)]
        return [reference for inner in value for reference in references(inner)] if isinstance(value, list) else []

    found = references(described)
    assert len(found) > 4 * len(EVENT_TYPES)
    for reference in found:
        target = described
        for part in reference.removeprefix("#/").split("/"):
            target = target[part]


def test_what_the_reader_receives_is_marked_and_nothing_else() -> None:
    described = document()
    named = {reference["$ref"].rpartition("/")[2] for reference in described["servers"]["nats"]["security"]}
    assert named == set(described["components"]["securitySchemes"])
    operations = described["operations"]
    marked = {name.removeprefix("on") for name, operation in operations.items() if "security" in operation}
    assert marked == {event.__name__ for event in EVENT_TYPES.values()} | {"Heartbeat", "LogLines"}


@pytest.mark.parametrize(
    "text", ["", "no", "null", "1.0", "a: b", "- x", "#", "'", '"', "ä\n\tb", "{job}", "$ref", "x" * 300]
)
def test_any_text_survives_yaml(text: str) -> None:
    tree = {text: text, "list": [text, [text], {text: [text, {}]}, []], "other": [1, 1.5, None, True]}
    assert yaml.safe_load(as_yaml(tree)) == tree
