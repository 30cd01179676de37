"""Topics: the things that messages of errors are about, by the words for them. They are data in `topics.toml`."""

from __future__ import annotations

import functools
import re
import tomllib
from importlib import resources

import msgspec

from holdfast.symptoms import Symptom

_TEXT_CHARS_MAX = 1000


class Topic(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A kind of trouble, by the words for it. All of `all` must match within one line, and none of `none`."""

    name: str
    symptom: Symptom
    advice: str
    all: tuple[str, ...]
    none: tuple[str, ...] = ()
    is_trouble: bool = False
    """True if the words are trouble by themselves; otherwise the line must report a failure as well."""
    examples: tuple[str, ...] = ()


class Topics:
    """All topics in order, compiled."""

    def __init__(self, text: str) -> None:
        data = tomllib.loads(text)
        words = {name: str(pattern) for name, pattern in data["words"].items()}
        self.topics = msgspec.convert(data["topic"], tuple[Topic, ...])
        self._trouble = _compiled(data["trouble"], words)
        self._noise = _compiled(data["noise"], words)
        self._place = _compiled(data["place"], words)
        self._compiled = tuple(
            (
                topic,
                tuple(_compiled(one, words) for one in topic.all),
                tuple(_compiled(one, words) for one in topic.none),
            )
            for topic in self.topics
        )

    def of(self, text: str, *, is_exception: bool = False) -> Topic | None:
        """Return the first topic of a line that reports a failure; None if it reports none, or one of another."""
        text = self._place.sub(" ", text[:_TEXT_CHARS_MAX])
        if self._noise.search(text):
            return None
        has_failed = is_exception or self._trouble.search(text) is not None
        return next(
            (
                topic
                for topic, patterns, none in self._compiled
                if (has_failed or topic.is_trouble)
                and all(one.search(text) for one in patterns)
                and not any(one.search(text) for one in none)
            ),
            None,
        )


def _compiled(pattern: str, words: dict[str, str]) -> re.Pattern[str]:
    for name, of_name in words.items():
        pattern = pattern.replace(f"<{name}>", f"(?:{of_name})")
    return re.compile(pattern, re.IGNORECASE)


@functools.cache
def topics() -> Topics:
    """Return the topics that come with Holdfast; read once."""
    return Topics(resources.files("holdfast.engines.crash.words").joinpath("topics.toml").read_text(encoding="utf-8"))
