"""The page of all settings is that of the code."""

from pathlib import Path

from tools.settings import page

PUBLISHED = Path(__file__).parents[3] / "docs" / "settings.md"


def test_the_page_is_up_to_date() -> None:
    assert PUBLISHED.read_text() == page(), "run: python -m tools.settings > docs/settings.md"
