"""Rules: the meaning of a line or an exception. They are data in `rules_in_order`, tried in the order of
its files' names and of the rules in each.

hand = "first"    the rank's end, for its own reason
       "vague"    the rank's own end, whose reason other lines must show
       "hint"     no proof alone; explains a vague end or one of the cascade
       "cascade"  the end of another rank

What a source proves: a line of the kernel, a driver or the fabric manager proves a fault of its machine, and of the job
only near the end of a rank (`cascade.py`). What a script prints proves how that rank ended, of the machine only what
CUDA, NCCL or the runtime's own message says. A launcher proves exit codes and which rank failed first, not why.
"""

from __future__ import annotations

import functools
import re
import tomllib
from importlib import resources
from typing import Any, Literal

import msgspec

from holdfast.symptoms import Root, Symptom


class Rule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One rule. Any pattern matches, unless one of `unless` matches as well."""

    name: str
    symptom: Symptom
    root: Root
    hand: Literal["first", "vague", "hint", "cascade"]
    confidence: float
    advice: str
    patterns: tuple[str, ...] = ()
    """Regular expressions for a line, or for `Type: message` of an exception."""
    types: tuple[str, ...] = ()
    """Exception types that match alone or, with patterns, are required in addition."""
    unless: tuple[str, ...] = ()
    undone: tuple[str, ...] = ()
    """Regular expressions for later lines of the same log which show that the fault passed: then a hint explains
    nothing. Lines of NCCL must be the same process's."""
    where: Literal["any", "line", "exception", "code"] = "any"
    """`code`: matches no line; the code names it for an exit code or a circumstance."""
    levels: Literal["loud", "nccl", "any"] = "loud"
    """`any`: warnings too, and information unless the hand is "first": what a script reports as such did not end it."""
    generic: bool = False
    """True if the rule shows only that the script failed; a more specific rule takes precedence."""
    needs_traceback: bool = False
    """True if the rule matches only an exception with its traceback."""
    alone: bool = False
    """A hint that counts even without other evidence of an end, as in a kernel log alone."""
    excuses: bool = True
    """False: part of the cascade, but no reason for an abort or an NCCL error in the same log."""
    examples: tuple[str, ...] = ()
    friends: tuple[str, ...] = ()
    """Harmless lines that it must not match."""


class RulesRefused(ValueError):
    """Invalid rules; the message names the rule and the reason."""


class CompiledRule(msgspec.Struct, frozen=True, kw_only=True):
    """A rule with compiled patterns; `place`: its position in the order."""

    rule: Rule
    place: int
    pattern: re.Pattern[str] | None
    unless: re.Pattern[str] | None
    undone: re.Pattern[str] | None
    types: frozenset[str]

    def finds_in_line(self, text: str, level: str) -> bool:
        """True if a line that is no exception matches."""
        rule = self.rule
        if rule.where in ("exception", "code") or self.pattern is None or (rule.types and rule.where != "line"):
            return False
        if level == "info" and (rule.levels != "any" or rule.hand == "first"):
            return False
        if level == "quiet" and rule.levels != "any":
            return False
        if level == "nccl_warn" and rule.levels == "loud":
            return False
        return bool(self.pattern.search(text)) and not (self.unless and self.unless.search(text))

    def knows_line(self, text: str) -> bool:
        """Return True if a line has a pattern of the rule, whatever the level and the patterns that exclude it."""
        is_of_lines = self.rule.where in ("any", "line") and not self.types
        return is_of_lines and self.pattern is not None and self.pattern.search(text) is not None

    def finds_in_exception(self, name: str, texts: tuple[str, ...], *, has_traceback: bool = True) -> bool:
        """Return True if an exception of type `name` matches. `texts`: `Type: message`, with the module and without."""
        if self.rule.where in ("line", "code") or (self.types and name not in self.types):
            return False
        if self.rule.needs_traceback and not has_traceback:
            return False
        if self.pattern is not None and not any(map(self.pattern.search, texts)):
            return False
        return not (self.unless and any(map(self.unless.search, texts)))


class LineFilter:
    """Quick filter for blocks and lines that any rule may match."""

    def __init__(self, anchors: tuple[str, ...], block_anchors: tuple[str, ...]) -> None:
        self._in_block = tuple(anchor.encode() for anchor in block_anchors)
        # Grouped by first letter: the regular expression tries one group at each position, not all.
        groups: dict[bytes, list[bytes]] = {}
        for anchor in anchors:
            groups.setdefault(anchor[:1].encode(), []).append(re.escape(anchor[1:].encode()))
        self._in_line = re.compile(
            b"|".join(re.escape(first) + b"(?:" + b"|".join(rest) + b")" for first, rest in groups.items())
        )

    def in_block(self, block: bytes) -> bool:
        return any(anchor in block for anchor in self._in_block)

    def in_line(self, line: bytes, end: int) -> bool:
        return self._in_line.search(line, 0, end) is not None


class RuleBook:
    """All rules in order, and the filter for lines that they may match."""

    def __init__(self, rules: tuple[Rule, ...], anchors: tuple[str, ...], block_anchors: tuple[str, ...]) -> None:
        self.compiled = tuple(_compiled(rule, place) for place, rule in enumerate(rules))
        self.line_filter = LineFilter(anchors, block_anchors)
        self._by_name = {one.rule.name: one for one in self.compiled}
        if len(self._by_name) < len(rules):
            raise RulesRefused("two rules have one name")

    def named(self, name: str) -> CompiledRule:
        return self._by_name[name]

    def of_line(self, text: str, level: str) -> CompiledRule | None:
        return next((one for one in self.compiled if one.finds_in_line(text, level)), None)

    def is_judged(self, text: str) -> bool:
        """Return True if a rule knows a line, also as one that it must not match, or at another level."""
        return any(one.knows_line(text) for one in self.compiled)

    def of_exception(self, qualified: str, message: str, *, has_traceback: bool = True) -> CompiledRule | None:
        """Return the first rule that matches an exception. `qualified`: its type, with its module if the log has it."""
        name = qualified.rpartition(".")[2]
        texts = (f"{name}: {message}",) if name == qualified else (f"{name}: {message}", f"{qualified}: {message}")
        return next(
            (one for one in self.compiled if one.finds_in_exception(name, texts, has_traceback=has_traceback)), None
        )


def _compiled(rule: Rule, place: int) -> CompiledRule:
    if not rule.patterns and not rule.types and rule.where != "code":
        raise RulesRefused(f"rule {rule.name}: neither patterns nor types")
    if not 0 < rule.confidence <= 1:
        raise RulesRefused(f"rule {rule.name}: confidence is {rule.confidence}, use 0 to 1")
    try:
        pattern, unless, undone = map(_any_of, (rule.patterns, rule.unless, rule.undone))
    except re.error as error:
        raise RulesRefused(f"rule {rule.name}: {error}") from error
    types = frozenset(rule.types)
    return CompiledRule(rule=rule, place=place, pattern=pattern, unless=unless, undone=undone, types=types)


def _any_of(patterns: tuple[str, ...]) -> re.Pattern[str] | None:
    return re.compile("|".join(f"(?:{one})" for one in patterns)) if patterns else None


def parsed(text: str) -> RuleBook:
    """Parse a rule book from TOML. Raises RulesRefused if the rules are invalid."""
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
    """Return the rules that come with Holdfast, of all files in the order of their names; read once."""
    files = resources.files("holdfast.engines.crash").joinpath("rules_in_order").iterdir()
    return parsed(
        "\n".join(
            file.read_text(encoding="utf-8")
            for file in sorted(files, key=lambda file: file.name)
            if file.name.endswith(".toml")
        )
    )
