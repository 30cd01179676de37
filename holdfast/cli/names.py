"""Names of jobs and nodes as people type them."""

from __future__ import annotations

import click

from holdfast.ids import checked_name


def require_name(name: str, what: str) -> str:
    """`name`, or an error of the command line; `what` is what it names."""
    try:
        return checked_name(name, what)
    except ValueError as error:
        raise click.ClickException(str(error)) from error
