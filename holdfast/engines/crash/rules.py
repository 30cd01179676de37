"""The rules: what a line or an exception means. They are data, in `rules.toml`, and tried in its order.

hand = "first"    the end of the rank that says it, for a reason of its own
       "vague"    its own end as well, but of what, other lines must tell
       "hint"     proves nothing alone; says what a vague end, or one of the cascade, was about
       "cascade"  somebody else's end
"""

from __future__ import annotations

import functools
import re
import tomllib
from importlib import resources
from typing import Any, Literal

import msgspec

from holdfast.symptoms.crashes import Crash
from holdfast.symptoms.table_one import Root


class Rule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`patterns` are regular expressions for a line, or for `Type: message` of an exception; any one of them suffices,
    unless one of `unless` is found as well. `types` are exception types that suffice alone, or, with patterns, that are
    asked for besides. `generic`: says only that the script failed; a more special rule goes before it.
    `alone`: a hint that is believed also where nothing else speaks of an end, as in a kernel log by itself.
    `excuses = false`: of the cascade, but no reason why the same log tells of an abort or of NCCL's errors.
    `levels = "any"`: also lines that are marked as information or warning. `where = "code"`: no line meets it; the code
    that knows an exit code or a circumstance names it.
    """

    name: str
    symptom: Crash
    root: Root
    hand: Literal["first", "vague", "hint", "cascade"]
    confidence: float
    advice: str
    patterns: tuple[str, ...] = ()
    types: tuple[str, ...] = ()
    unless: tuple[str, ...] = ()
    where: Literal["any", "line", "exception", "code"] = "any"
    levels: Literal["loud", "nccl", "any"] = "loud"
    generic: bool = False
    alone: bool = False
    excuses: bool = True
    examples: tuple[str, ...] = ()
    friends: tuple[str, ...] = ()


class RulesRefused(ValueError):
    """The rules are not as they must be: which one, and why."""


class CompiledRule(msgspec.Struct, frozen=True, kw_only=True):
    """A rule ready for use; `place` is its place in the order."""

    rule: Rule
    place: int
    pattern: re.Pattern[str] | None
    unless: re.Pattern[str] | None
    types: frozenset[str]

    def finds_in_line(self, text: str, level: str) -> bool:
        """Whether a line that is no exception says it."""
        rule = self.rule
        if rule.where in ("exception", "code") or self.pattern is None or (rule.types and rule.where != "line"):
            return False
        if level == "quiet" and rule.levels != "any":
            return False
        if level == "nccl_warn" and rule.levels == "loud":
            return False
        return bool(self.pattern.search(text)) and not (self.unless and self.unless.search(text))

    def finds_in_exception(self, name: str, said: tuple[str, ...]) -> bool:
        """Whether an exception of type `name` says it: `said` is `Type: message`, and with the type's module."""
        if self.rule.where in ("line", "code") or (self.types and name not in self.types):
            return False
        if self.pattern is not None and not any(map(self.pattern.search, said)):
            return False
        return not (self.unless and any(map(self.unless.search, said)))


class LineFilter:
    """Tells quickly where any rule may find something: in a block of lines, and in a line."""

    def __init__(self, anchors: tuple[str, ...], block_anchors: tuple[str, ...]) -> None:
        self._in_block = tuple(anchor.encode() for anchor in block_anchors)
        # Grouped by their first letters: the regular expression tries one group at a place, not all of them.
        groups: dict[bytes, list[bytes]] = {}
        for anchor in anchors:
            groups.setdefault(anchor[:1].encode(), []).append(re.escape(anchor[1:].encode()))
        self._in_line = re.compile(
            b"|".join(re.escape(first) + b"(?:" + b"|".join(rest) + b")" for first, rest in groups.items())
        )

    def in_block(self, block: bytes) -> bool:
        """Whether a block has a line to look at."""
        return any(anchor in block for anchor in self._in_block)

    def in_line(self, line: bytes, end: int) -> bool:
        """Whether the first `end` bytes of a line are worth a look."""
        return self._in_line.search(line, 0, end) is not None


class RuleBook:
    """All rules in their order, and what finds lines that any of them may be about."""

    def __init__(self, rules: tuple[Rule, ...], anchors: tuple[str, ...], block_anchors: tuple[str, ...]) -> None:
        self.compiled = tuple(_compiled(rule, place) for place, rule in enumerate(rules))
        self.line_filter = LineFilter(anchors, block_anchors)
        self._by_name = {one.rule.name: one for one in self.compiled}
        if len(self._by_name) < len(rules):
            raise RulesRefused("two rules have one name")

    def named(self, name: str) -> CompiledRule:
        """The rule of this name."""
        return self._by_name[name]

    def of_line(self, text: str, level: str) -> CompiledRule | None:
        """The first rule that a line meets."""
        return next((one for one in self.compiled if one.finds_in_line(text, level)), None)

    def of_exception(self, qualified: str, message: str) -> CompiledRule | None:
        """The first rule that an exception meets. `qualified` is its type, with its module where the log has it."""
        name = qualified.rpartition(".")[2]
        said = (f"{name}: {message}",) if name == qualified else (f"{name}: {message}", f"{qualified}: {message}")
        return next((one for one in self.compiled if one.finds_in_exception(name, said)), None)


def _compiled(rule: Rule, place: int) -> CompiledRule:
    if not rule.patterns and not rule.types and rule.where != "code":
        raise RulesRefused(f"rule {rule.name}: neither patterns nor types")
    if not 0 < rule.confidence <= 1:
        raise RulesRefused(f"rule {rule.name}: confidence is {rule.confidence}, use 0 to 1")
    try:
        pattern = re.compile("|".join(f"(?:{one})" for one in rule.patterns)) if rule.patterns else None
        unless = re.compile("|".join(f"(?:{one})" for one in rule.unless)) if rule.unless else None
    except re.error as error:
        raise RulesRefused(f"rule {rule.name}: {error}") from error
    return CompiledRule(rule=rule, place=place, pattern=pattern, unless=unless, types=frozenset(rule.types))


def parsed(text: str) -> RuleBook:
    """A rule book from TOML.

    Raises:
        RulesRefused: it is not as it must be.
    """
    try:
        data: dict[str, Any] = tomllib.loads(text)
        rules = msgspec.convert(data.get("rule", []), tuple[Rule, ...])
        anchors = msgspec.convert(data.get("anchors", []), tuple[str, ...])
        block_anchors = msgspec.convert(data.get("block_anchors", []), tuple[str, ...])
    except (tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise RulesRefused(f"the rules cannot be read: {error}") from error
    return RuleBook(rules, anchors, block_anchors)


@functools.cache
def rule_book() -> RuleBook:
    """The rules that come with Holdfast; read on first use."""
    return parsed(resources.files("holdfast.engines.crash").joinpath("rules.toml").read_text(encoding="utf-8"))
