"""Numbers that are not finite in the steps with which a log ends: training that went on with them. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

_VALUE = (
    r"['\"]?(?: ?[:=|] ?| )['\"]?"
    r"([+-]?(?:nan(?:\b|(?=Epoch))|inf(?:\b|(?=Epoch))|infinity\b|\d{1,30}(?:\.\d{0,30})?(?:e[+-]?\d{1,4})?))"
)
"""Keras writes the next epoch's head directly behind a bar's last number."""
_LOSS = re.compile(rf"(?<![a-z])(?:\w{{1,24}}[_/ ])?loss(?:_\w{{1,24}})?{_VALUE}", re.IGNORECASE)
_NORM = re.compile(rf"\b(?:grad(?:ient)?[_ ]?norm|gnorm){_VALUE}", re.IGNORECASE)
_SCALE = re.compile(
    r"overflow detected, setting loss scale to: |(?:reducing|attempted) loss[ _]scale.{0,60}to (?=[\d.])"
    r"|Loss scale .{0,20}reduced to ",
    re.IGNORECASE,
)
_SCALED = re.compile(r"(\d{1,12}(?:\.\d{1,60})?(?:e[+-]?\d{1,4})?)", re.IGNORECASE)
_TRIED = re.compile(rf"attempted loss[ _]scale:? ?{_SCALED.pattern}, reducing to ", re.IGNORECASE)
_OTHER_LOSS = re.compile(
    r"\bloss[_ ]scale|\b(?:eval|val|test|dev|best|min)[a-z]{0,12}[ _/.-]{0,3}(?:[a-z]{1,12}[ _/.-])?loss", re.IGNORECASE
)
"""Text that is not the loss of a step: loss scales, and losses of evaluations, which are NaN before the first one."""
_LINE_CHARS_MAX = 2000

_WARNED = "NaN or Inf found in input tensor"
"""Warning of TensorBoard's writer about a number that it is given, which need not be the loss."""

STEPS = 3
"""Steps with such numbers, one after another, before they count."""

Step = Literal["finite", "overflow", "bad", "warned", "none"]


def bad_steps(lines: Sequence[str]) -> tuple[int, ...]:
    """Return the places of the last lines with numbers of steps if these went bad and stayed so, else nothing."""
    found: list[int] = []
    kinds: list[Step] = []
    for place in range(len(lines) - 1, -1, -1):
        kind = _step(lines[place])
        if kind == "finite":
            break
        if kind != "none":
            found.insert(0, place)
            kinds.insert(0, kind)
    stayed_so = "bad" in kinds and set(kinds[-2:]) <= {"bad", "warned"}
    return tuple(found) if len(found) >= STEPS and stayed_so else ()


def _step(line: str) -> Step:
    """Judge the numbers of a line. With mixed precision a gradient may overflow in any step; it is bad only where the
    line has no loss, or one that has become 0."""
    scale = _SCALE.search(line, 0, _LINE_CHARS_MAX)
    text = _OTHER_LOSS.sub("", line[:_LINE_CHARS_MAX])
    losses, norms = _LOSS.findall(text), _NORM.findall(text)
    if not all(map(_is_finite, losses)):
        return "bad"
    if scale:
        return "bad" if _is_lost(line, scale) else "overflow"
    if not losses and not norms:
        return "warned" if _WARNED in text else "none"
    if all(map(_is_finite, norms)):
        return "finite"
    return "bad" if all(float(loss) == 0.0 for loss in losses) else "overflow"


def _is_lost(line: str, scale: re.Match[str]) -> bool:
    """Return True if a loss scale has sunk as far as it can. One that starts too high sinks for some steps; below 1, or
    held at 1, it no longer scales, and nothing is learned."""
    to = _SCALED.match(line, scale.end())
    if to is None or "hysteresis" in line:
        return False
    tried = _TRIED.search(line, 0, _LINE_CHARS_MAX)
    return float(to[1]) < 1.0 or (tried is not None and float(tried[1]) == float(to[1]) <= 1.0)


def _is_finite(value: str) -> bool:
    return value.lstrip("+-")[0].isdigit()
