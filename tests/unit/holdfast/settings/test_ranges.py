"""Each number's range is enforced, whether it comes from a file, the environment or the constructor."""

import re
from pathlib import Path
from typing import Annotated, get_type_hints

import msgspec
import pytest

from holdfast.settings import Section, Within, ranges_of
from holdfast.settings.inspections import CommandCheck
from holdfast.settings.load import SECTIONS, ConfigRefused, load

RANGES = [(section, name, within) for section, kind in SECTIONS.items() for name, within in ranges_of(kind).items()]


def beyond(section: str, name: str, within: Within) -> tuple[float, float]:
    if get_type_hints(SECTIONS[section])[name] is int:
        return int(within.low) - 1, int(within.high) + 1
    step = max(abs(within.high), abs(within.low)) * 1e-6
    return within.low - step, within.high + step


@pytest.mark.parametrize(("section", "name", "within"), RANGES, ids=lambda it: it if isinstance(it, str) else "")
def test_a_number_beyond_its_range_is_refused_with_range_and_reason(
    section: str, name: str, within: Within, tmp_path: Path
) -> None:
    kind = SECTIONS[section]
    said = f"must be at least {within.low:.12g} and at most {within.high:.12g}" + (within.why and f": {within.why}")
    for value in beyond(section, name, within):
        shown = f"{name} = {value:g} {said}"
        with pytest.raises(ValueError, match=f"^{re.escape(shown)}$"):
            kind(**{name: value})
        file = tmp_path / "holdfast.toml"
        file.write_text(f"[{section}]\n{name} = {value!r}\n")
        variable = f"HOLDFAST_{section}_{name}".upper()
        for environ, origin in (({"HOLDFAST_CONFIG": str(file)}, str(file)), ({variable: repr(value)}, variable)):
            with pytest.raises(ConfigRefused) as told:
                load(environ)
            assert shown in str(told.value) and origin in str(told.value)


@pytest.mark.parametrize("kind", [*SECTIONS.values(), CommandCheck])
def test_every_number_has_a_range(kind: type[Section]) -> None:
    numbers = {name for name, hint in get_type_hints(kind).items() if hint in (int, float)}
    assert numbers == set(ranges_of(kind))


def test_limits_belong_to_the_range() -> None:
    class Example(Section, frozen=True, kw_only=True):
        share: Annotated[float, Within(0, 1)] = 0.5

    assert msgspec.convert({"share": 1}, Example).share == 1 and Example(share=0.0).share == 0
    for share in (1.0001, -0.0001, float("nan")):
        with pytest.raises(ValueError, match="share = "):
            Example(share=share)
