"""Checks of names of jobs and nodes on the command line."""

from __future__ import annotations

import click

from holdfast.ids import checked_name


def require_name(name: str, what: str) -> str:
    """Return `name`; `what` is shown in the error. Raises click.ClickException if it cannot be a name."""
    try:
        return checked_name(name, what)
    except ValueError as error:
        raise click.ClickException(str(error)) from error
