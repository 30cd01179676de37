"""Meaning of each setting: its default, what it may be, and the docstring under it."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

import msgspec

from holdfast.settings import Section, ranges_of


class Meaning(NamedTuple):
    name: str
    default: str
    """Default as a TOML value; "": the setting is required, or has none."""
    allowed: str
    """Range or choice, "": any value of its type."""
    text: str


def meanings_of(section: type[Section]) -> Iterator[Meaning]:
    """Yield the meanings of a section's settings, in order."""
    docs, ranges, hints = field_docs(section), ranges_of(section), get_type_hints(section)
    for field in msgspec.structs.fields(section):
        allowed = ""
        if field.name in ranges:
            low, high, why = ranges[field.name]
            allowed = f"{low:.12g} to {high:.12g}" + (f" ({why})" if why else "")
        elif get_origin(hints[field.name]) is Literal:
            allowed = "one of " + ", ".join(map(_shown, get_args(hints[field.name])))
        default = "" if field.default is msgspec.NODEFAULT else _shown(field.default)
        yield Meaning(field.name, default, allowed, docs[field.name])


def field_docs(kind: type[msgspec.Struct]) -> dict[str, str]:
    """Return the docstring under each field of a struct and of its bases."""
    docs: dict[str, str] = {}
    for cls in reversed(kind.__mro__[: kind.__mro__.index(msgspec.Struct)]):
        body = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0]
        assert isinstance(body, ast.ClassDef)
        for field, below in pairwise(body.body):
            if isinstance(field, ast.AnnAssign) and isinstance(below, ast.Expr) and isinstance(field.target, ast.Name):
                docs[field.target.id] = " ".join(str(ast.literal_eval(below.value)).split())
    return docs


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:.12g}" if isinstance(value, int | float) else f'"{value}"'
