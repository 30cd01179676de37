"""Options of all commands that read the database."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from holdfast.cli.connect.addresses import database_option
from holdfast.cli.connect.directory import directory_option

F = TypeVar("F", bound=Callable[..., Any])

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def reading_options(command: F) -> F:
    """Add `--dir`, `--database-url` and `--json`, as parameters `directory`, `database_url` and `as_json`."""
    decorated: F = directory_option(database_option(json_option(command)))
    return decorated
