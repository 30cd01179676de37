"""The settings that a policy consists of, and the differences of two."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from holdfast.code.manifest import Manifest
from holdfast.settings.load import ConfigRefused, Settings, load
from holdfast_controller.plan.draft import Rules

SECTIONS = ("timeouts", "ladder", "mechanisms", "hang", "code", "record", "warm_up")
"""The sections of the settings that the controller decides by."""


def rules_of(settings: Settings, manifests: Mapping[str, Manifest]) -> Rules:
    """Return the rules of decisions under these settings."""
    return Rules(**{name: getattr(settings, name) for name in SECTIONS}, manifests=manifests)


def overlaid(was: Settings, file: str) -> Settings:
    """Return settings with those of a TOML file in their place.

    Raises:
        ConfigRefused: unreadable, unknown or wrong, or a setting that no decision of the controller depends on.
    """
    read, listed = load({}, file=file)
    replaced = [row.key for row in listed if row.origin == file]
    sections: dict[str, Any] = {}
    for key in replaced:
        section, _, name = key.partition(".")
        if section not in SECTIONS:
            known = ", ".join(f"[{it}]" for it in SECTIONS)
            raise ConfigRefused(
                f"{file}: {key} is not part of a policy that can be tested on the record: the controller decides by "
                f"{known}"
            )
        before = sections.get(section, getattr(was, section))
        sections[section] = msgspec.structs.replace(before, **{name: getattr(getattr(read, section), name)})
    return msgspec.structs.replace(was, **sections)


def changed(was: Settings, other: Settings) -> list[dict[str, object]]:
    """Return each setting of a policy that differs: its key, its value before and its value now."""
    found = []
    for section in SECTIONS:
        before, now = getattr(was, section), getattr(other, section)
        for name in before.__struct_fields__:
            one, two = getattr(before, name), getattr(now, name)
            if one != two:
                found.append({"key": f"{section}.{name}", "was": one, "instead": two})
    return found
