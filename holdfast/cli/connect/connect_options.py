"""Options that name a cluster, for all commands that need one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from holdfast.cli.connect.addresses import database_option, nats_option
from holdfast.cli.connect.directory import directory_option

F = TypeVar("F", bound=Callable[..., Any])

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def reading_options(command: F) -> F:
    """Add `--dir`, `--database-url` and `--json`, as parameters `directory`, `database_url` and `as_json`."""
    decorated: F = directory_option(database_option(json_option(command)))
    return decorated


def cluster_options(command: F) -> F:
    """Add `--dir`, `--nats-url` and `--database-url`, as parameters `directory`, `nats_url` and `database_url`."""
    decorated: F = directory_option(nats_option(database_option(command)))
    return decorated
